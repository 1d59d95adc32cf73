// What the page uses of others: dagre (MIT) lays graphs out, d3-zoom (ISC) moves pictures.
/*! dagre and graphlib: MIT, (c) 2012-2014 Chris Pettitt, (c) 2023 Ben Newman and others
 *  d3-zoom, d3-selection and what they use: ISC, (c) 2010-2021 Mike Bostock
 *  d3-ease: BSD-3-Clause, (c) 2010-2021 Mike Bostock, (c) 2001 Robert Penner */
import dagre from "@dagrejs/dagre";
import {select} from "d3-selection";
import {zoom, zoomIdentity} from "d3-zoom";

Object.assign(globalThis, {dagre, d3: {select, zoom, zoomIdentity}});
