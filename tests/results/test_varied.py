"""What data are is left out where their names tell them apart, and shown where one name has had two meanings."""

import pandas as pd

from results.frames import varied
from schemas.trial import Trial


def frame(*data: tuple[str, str]) -> pd.DataFrame:
    return pd.DataFrame([Trial(dataset=dataset, data_id=data_id).model_dump() for dataset, data_id in data])


def test_data_are_told_apart_by_name_where_it_can() -> None:
    assert varied(frame(("shakespeare", ""), ("fineweb", "a" * 64))) == ["dataset"]
    assert varied(frame(("text:a.txt", "a" * 64), ("text:a.txt", "b" * 64))) == ["data_id"]
    assert varied(frame(("text:a.txt", "a" * 64), ("text:a.txt", "b" * 64), ("shakespeare", ""))) == [
        "dataset",
        "data_id",
    ]
