"""Published formats: small samples as their authors write them, and what a bad row says."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces import files, published
from hvd_elastic_ext.simulate.traces.rows import Row, Trace

AWS = """\
SpotPrice,AvailabilityZone,InstanceType,ProductDescription,Timestamp
0.900000,us-east-1a,p3.2xlarge,Linux/UNIX,2021-02-20 14:00:00+00:00
1.300000,us-east-1a,p3.2xlarge,Linux/UNIX,2021-02-20 12:00:00+00:00
0.950000,us-east-1b,p3.2xlarge,Linux/UNIX,2021-02-20 11:00:00+00:00
1.400000,us-east-1a,p3.2xlarge,Windows,2021-02-20 10:30:00+00:00
0.800000,us-east-1a,p3.2xlarge,Linux/UNIX,2021-02-20 10:00:00+00:00
"""
AWS_JSON = """\
{"SpotPriceHistory": [
  {"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX",
   "SpotPrice": "1.300000", "Timestamp": "2021-02-20T12:00:00+00:00"},
  {"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX",
   "SpotPrice": "0.800000", "Timestamp": "2021-02-20T10:00:00.000Z"}]}
"""
SPOTLAKE = """\
Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings
2025-01-01 00:00:00,p3.2xlarge,us-east-1,use1-az1,3,5,10,2.5,3.06,0.92,69
2025-01-01 00:00:00,p3.2xlarge,us-east-1,use1-az2,,,,2.5,3.06,0.95,68
2025-01-01 00:00:00,m7i.large,us-east-1,use1-az1,3,50,50,3.0,0.1,0.04,60
Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings
2025-01-01 00:10:00,p3.2xlarge,us-east-1,use1-az1,2,0,5,2.5,3.06,0.92,69
2025-01-01 00:20:00,p3.2xlarge,us-east-1,use1-az1,3,1,5,2.5,3.06,,
"""
PHILLY = """\
[{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "submitted_time": "2017-10-07 00:59:39", "user": "c",
  "attempts": [
    {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 02:00:00",
     "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0"]}]},
    {"start_time": "2017-10-07 03:00:00", "end_time": "2017-10-07 04:00:00",
     "detail": [{"ip": "m47", "gpus": ["gpu1", "gpu2"]}]},
    {"start_time": null, "end_time": null, "detail": []}]},
 {"status": "Failed", "vc": "abcdef", "jobid": "application_2", "submitted_time": "2017-10-07 00:59:39", "user": "d",
  "attempts": []}]
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,12,1,2,COMPLETED,2020-06-09 10:00:00,2020-06-09 10:00:00,2020-06-09 12:00:00,7200,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 10:30:00,2020-06-09 11:00:00,2020-06-09 13:00:00,7200,1800
1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 10:31:00,2020-06-09 10:31:00,2020-06-17 14:15:21,704661,0
"""


def read(text: str, told: str = "") -> Trace:
    return files.parsed(text, where="t", assumed=published.assumptions(told))(0)


def counts(trace: Trace) -> dict[float, int]:
    """How many hosts there are from each time on."""
    there, found = 0, dict[float, int]()
    for row in trace.rows:
        there += {"up": 1, "down": -1}.get(row.event, 0)
        found[row.at] = there
    return found


def test_hosts_of_a_spot_pool_are_there_while_their_price_is_not_too_high_and_cost_it() -> None:
    trace = read(AWS, "hosts=2,max_price=1,slots=2")
    assert counts(trace) == {0.0: 2, 3600.0: 4, 7200.0: 2, 14400.0: 4}
    first = trace.rows[0]
    assert first == Row(0.0, "us-east-1a.p3.2xlarge-1", "up", slots=2, kind="p3.2xlarge", price=0.4)
    assert {row.price for row in trace.rows if row.event == "up"} == {0.4, 0.475, 0.45}


def test_a_price_that_changes_is_that_of_hosts_from_then_on() -> None:
    trace = read(AWS, "hosts=1,zone=us-east-1a")
    assert [(row.at, row.event, row.price) for row in trace.rows] == [
        (0.0, "up", 0.8), (7200.0, "price", 1.3), (14400.0, "price", 0.9),
    ]  # fmt: skip


def test_what_the_command_of_aws_prints_is_read_as_it_is() -> None:
    assert counts(read(AWS_JSON, "hosts=1,max_price=1")) == {0.0: 1, 7200.0: 0}


def test_spotlake_has_as_many_hosts_as_scored_3_and_none_without_a_score_or_a_price() -> None:
    assert counts(read(SPOTLAKE, "type=p3.2xlarge")) == {0.0: 5, 600.0: 0}
    assert counts(read(SPOTLAKE, "type=p3.2xlarge,hosts=4,score=2")) == {0.0: 4, 1200.0: 0}
    older = SPOTLAKE.replace("T3,T2,", "").replace(",5,10,", ",").replace(",0,5,", ",").replace(",1,5,", ",")
    older = older.replace(",,,,2.5", ",,2.5").replace(",3,50,50,", ",3,")
    assert counts(read(older, "type=p3.2xlarge,hosts=4")) == {0.0: 4, 600.0: 0}


def test_a_machine_of_philly_is_there_while_no_job_has_a_gpu_of_it() -> None:
    trace = read(PHILLY, "notice=1m")
    assert [(row.at, row.host, row.event, row.slots) for row in trace.rows] == [
        (0.0, "m47", "up", 3), (0.0, "m48", "up", 1), (3600.0, "m47", "down", 1),
    ]  # fmt: skip
    assert trace.rows[2].notice == 60.0


def test_helios_has_the_whole_hosts_that_its_jobs_leave_free() -> None:
    assert counts(read(HELIOS, "gpus=32,slots=8")) == {0.0: 2, 7200.0: 3, 10800.0: 4}
    assert counts(read(HELIOS)) == {0.0: 1, 3600.0: 2}  # of as many GPUs as were ever in use
    assert counts(read(HELIOS, "vc=vcJkd,gpus=20")) == {0.0: 1, 7200.0: 2}


@pytest.mark.parametrize(
    ("text", "told", "said"),
    [
        (AWS.replace("0.950000", "cheap"), "", "t:4: SpotPrice is 'cheap'; write a price such as 0.35"),
        (AWS.replace("2021-02-20 14:00", "yesterday"), "", "t:2: Timestamp is 'yesterday"),
        (AWS.replace("us-east-1b", "us east"), "", "t:4: AvailabilityZone: host name 'us east' contains white space"),
        (AWS.replace("ProductDescription", "Product"), "", "t:1: column 'Product' is unknown"),
        (AWS + "0.9,us-east-1a\n", "", "t:7: has 2 values for 5 columns"),
        (AWS, "max_price=0.1", "t: has no host; change --assume max_price=0.1"),
        (AWS, "vc=x", "--assume vc: t is a history of prices, for which"),
        (AWS, "zone=eu", "t: has no selected pool"),
        (AWS_JSON.replace('"SpotPrice": "1.3', '"Price": "1.3'), "", "t: entry 1: has no text 'SpotPrice'"),
        (AWS_JSON.replace("]}", "]"), "", "t: is not JSON"),
        ("{}", "", "t: has no list 'SpotPriceHistory'"),
        (SPOTLAKE, "", "t: has 2 instance types (m7i.large, p3.2xlarge); add --assume type=m7i.large"),
        (SPOTLAKE.replace(",3,5,10", ",3,few,10"), "", "t:2: T3 is 'few'; write a whole number"),
        (PHILLY.replace("2017-10-07 01:00:00", "soon"), "", "t: job 1 (application_1): start_time is 'soon'"),
        (PHILLY.replace("02:00:00", "00:30:00"), "", "t: job 1 (application_1): end_time is before start_time"),
        (PHILLY.replace('"ip": "m47", ', ""), "", "t: job 1 (application_1): detail is {'gpus'"),
        (PHILLY.replace('"attempts": []', '"attempts": 3'), "", "t: job 2 has no list 'attempts'"),
        ("[]", "", "t: has no attempt on a machine"),
        (HELIOS.replace(",4,16", ",four,16"), "", "t:3: gpu_num is 'four'; write a whole number"),
        (HELIOS.replace("2020-06-09 13:00:00", "2020-06-09 10:00:00"), "", "t:3: end_time is before start_time"),
        (HELIOS, "after=9d", "t: has no hosts in the part that is wanted; change --assume after or days"),
        ("time,host,event\n0,a,up\n", "notice=9", "--assume: t lists each host"),
    ],
)
def test_a_bad_row_is_one_line_that_names_its_place(text: str, told: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(text, told)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("told", ["unit=y", "slots=0", "untold=2", "host=3", "days=0", "type=", "max_price=x"])
def test_an_assumption_that_cannot_be_is_one_line(told: str) -> None:
    with pytest.raises(UsageError, match="--assume"):
        published.assumptions(told)


def test_a_compressed_file_is_read_as_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(SPOTLAKE.encode()))
    found = files.read(tmp_path / "t.csv.gz", published.assumptions("type=p3.2xlarge"))(0)
    assert found == read(SPOTLAKE, "type=p3.2xlarge")
