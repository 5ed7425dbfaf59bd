"""Contract tests for plugin authors: one class per kind, subclassed with the plugin's name.

    from rllm_plugin_kit import EstimatorContract

    class TestMedian(EstimatorContract):
        name = "median"
        options = ({}, {"scale": 2.0})

Classes are imported when they are asked for, so that only the contract of losses imports torch. Needs pytest
(``rllm-core[testing]``).
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
