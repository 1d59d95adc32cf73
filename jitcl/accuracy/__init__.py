"""Two configurations of a model beside each other: where they part, and which layer adds most."""
