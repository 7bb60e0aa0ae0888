"""The JSON Schemas of our files, for editors and other programs. Renew them with `python -m docs.reference.schemas`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from planner.cluster import Cluster
from planner.plan import Plan

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLANS = Path(__file__).parents[2] / "plans"
MODELS: Mapping[str, type[BaseModel]] = {"plan.schema.json": Plan, "cluster.schema.json": Cluster}


def text(model: type[BaseModel]) -> str:
    """Returns a model's JSON schema.

    Returns: JSON; in a file the version is never left out.
    """
    schema = model.model_json_schema()
    required = ["version", *schema.get("required", [])]
    return json.dumps({"$schema": DIALECT, **schema, "required": required}, indent=1) + "\n"


def main() -> None:
    for name, model in MODELS.items():
        (PLANS / name).write_text(text(model), encoding="utf-8")


if __name__ == "__main__":
    main()
