"""RocketMQ's own samples against mqdb, unmodified, one by one."""

import pytest

from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.remoting_kit import RunKitProcess
from tests.remoting.samples import SAMPLES, Sample, run_sample


@pytest.mark.long
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_of_rocketmq(run_kit_process: RunKitProcess, remoting_front: str, sample: Sample) -> None:
    # A new group of mqdb begins at the end of a topic, so the consumer has to find the topic when it starts.
    run_kit_process("topic", "--topic", sample.topic).wait()
    with skipped_if_missing():
        fault = run_sample(sample, remoting_front)
    assert fault is None, fault
