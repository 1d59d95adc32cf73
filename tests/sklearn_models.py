"""Models of scikit-learn as their users export them: fitted on made-up data, converted by skl2onnx.

Imports of scikit-learn stand inside the functions: whoever lacks it can still collect tests.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FEATURES = 12
TRAINED = 2000                               # rows that models are fitted on


@dataclass(frozen=True)
class Exported:
    """A model's bytes, and what it is fed: rows by name of input."""

    data: bytes
    feeds: dict[str, Any]


def rows(count: int, seed: int = 1) -> np.ndarray:
    """Rows to predict for: of the distribution that models are fitted on, but others."""
    return _points(count, seed)


def _points(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, FEATURES)) * 2 + rng.integers(-1, 2, (count, 1))
            ).astype(np.float32)


def _classes(x: np.ndarray, count: int) -> np.ndarray:
    score = x[:, 0] * x[:, 1] + 2 * np.sin(x[:, 2]) + x[:, 3]
    return np.digitize(score, np.quantile(score, np.linspace(0, 1, count + 1)[1:-1]))


def _target(x: np.ndarray) -> np.ndarray:
    return x[:, 0] * x[:, 1] + 2 * np.sin(x[:, 2]) + x[:, 3]


def exported(name: str, count: int) -> Exported:
    """The model `name` of MODELS, with `count` rows to predict for."""
    from skl2onnx import to_onnx
    make, kind = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "columns":
            return _columns(count)
        x = _points(TRAINED, 0)
        y = {"3": _classes(x, 3), "2": _classes(x, 2), "r": _target(x), "": None,
             "s": np.array(["low", "middle", "high"])[_classes(x, 3)]}[kind]
        model = make()
        model.fit(np.abs(x) if name == "MultinomialNB" else x, y)
        data = to_onnx(model, x[:1], options=None).SerializeToString()
    fed = rows(count)
    if name == "imputed":
        fed[::7, 3] = np.nan
    return Exported(data, {"X": np.abs(fed) if name == "MultinomialNB" else fed})


def _columns(count: int) -> Exported:
    """A ColumnTransformer of numbers and strings, as of a table."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    kinds = np.array(["red", "green", "blue"], object)

    def table(n: int, seed: int) -> np.ndarray:
        x = _points(n, seed)
        words = kinds[np.random.default_rng(seed).integers(0, 3, n)]
        return np.concatenate([x[:, :4].astype(object), words[:, None]], axis=1)
    trained, fed = table(TRAINED, 0), table(count, 1)
    parts = ColumnTransformer([("numbers", StandardScaler(), [0, 1, 2, 3]),
                               ("words", OneHotEncoder(handle_unknown="ignore"), [4])])
    model = make_pipeline(parts, LogisticRegression(max_iter=200))
    model.fit(trained, _classes(trained[:, :4].astype(np.float32), 3))
    data = to_onnx(model, initial_types=[("X", FloatTensorType([None, 4])),
                                         ("word", StringTensorType([None, 1]))]
                   ).SerializeToString()
    return Exported(data, {"X": fed[:, :4].astype(np.float32), "word": fed[:, 4:]})


def _of(module: str, name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import importlib
        return getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)
    return make


def _pipeline(*steps: Callable[[], Any]) -> Callable[[], Any]:
    def make() -> Any:
        from sklearn.pipeline import make_pipeline
        return make_pipeline(*(step() for step in steps))
    return make


_logistic = _of("linear_model", "LogisticRegression", max_iter=300)

# name -> (what makes it, what it learns: "3" or "2" classes, "r" a number, "s" strings, "" nothing)
MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "GradientBoostingClassifier": (_of("ensemble", "GradientBoostingClassifier", random_state=0),
                                   "3"),
    "binary boosting": (_of("ensemble", "GradientBoostingClassifier", random_state=0), "2"),
    "GradientBoostingRegressor": (_of("ensemble", "GradientBoostingRegressor", random_state=0),
                                  "r"),
    "RandomForestClassifier": (_of("ensemble", "RandomForestClassifier", random_state=0), "3"),
    "RandomForestRegressor": (_of("ensemble", "RandomForestRegressor", random_state=0), "r"),
    "ExtraTreesClassifier": (_of("ensemble", "ExtraTreesClassifier", random_state=0), "2"),
    "DecisionTreeClassifier": (_of("tree", "DecisionTreeClassifier", random_state=0), "s"),
    "AdaBoostClassifier": (_of("ensemble", "AdaBoostClassifier", n_estimators=10, random_state=0),
                           "2"),
    "LogisticRegression": (_logistic, "3"), "string labels": (_logistic, "s"),
    "LinearSVC": (_of("svm", "LinearSVC", dual=False), "3"),
    "Ridge": (_of("linear_model", "Ridge"), "r"),
    "SVC": (_of("svm", "SVC"), "3"),
    "SVC probability": (_of("svm", "SVC", probability=True, random_state=0), "2"),
    "SVR": (_of("svm", "SVR"), "r"),
    "KNeighborsClassifier": (_of("neighbors", "KNeighborsClassifier"), "3"),
    "KMeans": (_of("cluster", "KMeans", n_clusters=6, n_init=2, random_state=0), ""),
    "MLPClassifier": (_of("neural_network", "MLPClassifier", hidden_layer_sizes=(32, 16),
                          max_iter=30, random_state=0), "3"),
    "PCA": (_of("decomposition", "PCA", n_components=4, random_state=0), ""),
    "GaussianNB": (_of("naive_bayes", "GaussianNB"), "3"),
    "MultinomialNB": (_of("naive_bayes", "MultinomialNB"), "3"),
    "scaled": (_pipeline(_of("preprocessing", "StandardScaler"),
                         _of("preprocessing", "MinMaxScaler"), _logistic), "3"),
    "imputed": (_pipeline(_of("impute", "SimpleImputer"), _of("preprocessing", "StandardScaler"),
                          _of("ensemble", "RandomForestClassifier", n_estimators=20,
                              random_state=0)), "3"),
    "columns": (_logistic, "3"),
}
