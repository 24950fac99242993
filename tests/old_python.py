"""Python 3.10: LangGraph does not tell coroutines which graph they run in.

What they ask of models, and functions that they call, cannot be recorded there; the product warns of
it. The tests whose coroutines need that are skipped.
"""

from __future__ import annotations

import sys
from typing import Any

COROUTINES = frozenset({"ainvoke", "astream", "abatch", "astream_events", "async", True})
"""Values of parameters that say that coroutines are used."""
TOLD = frozenset(
    {
        "test_an_answer_whose_end_is_stored_is_whole_and_nobody_is_asked",
        "test_a_durable_model_answers_as_the_plain_one",
        "test_a_background_response_is_fetched_and_not_paid_again",
        "test_a_batch_in_one_node_gives_each_question_its_own_answer",
        "test_a_fallback_is_journaled_as_the_call_it_is",
        "test_a_finished_call_is_paid_once",
        "test_a_kill_around_any_batch_loses_nothing_that_was_shown",
        "test_a_line_that_is_cut_in_a_fast_answer_keeps_what_came",
        "test_a_model_that_streams_in_one_way_only_serves_coroutines_too",
        "test_a_new_message_after_a_crash_in_a_tool",
        "test_a_recorded_function_that_is_cancelled_is_unknown",
        "test_a_refusal_of_prefill_steps_down_to_instruct",
        "test_a_restart_that_says_something_else_resets",
        "test_a_stream_that_is_made_of_the_models_other_stream_is_one_call",
        "test_after_a_rate_limit_two_calls_are_replayed_and_one_is_sent",
        "test_an_edit_after_time_travel_runs_and_the_same_decision_does_not",
        "test_an_ensemble_keeps_its_samples_apart",
        "test_an_interrupted_call_goes_on_with_the_recorded_parameters",
        "test_an_unknown_function_call_is_asked_about",
        "test_answers_outlive_checkpoints_that_were_lost",
        "test_arguments_that_a_human_edits_are_the_ones_that_run",
        "test_automatic_seeds_do_not_depend_on_the_order_of_a_batch",
        "test_chunks_share_commits_and_the_answer_is_the_models",
        "test_configurable_fields_and_alternatives",
        "test_coroutines_do_the_same",
        "test_equal_calls_in_one_node_all_run_once_and_keep_their_results",
        "test_equal_calls_in_two_turns_run_twice",
        "test_half_a_tool_call_begins_anew",
        "test_instruct_asks_to_go_on_and_trims_what_is_said_twice",
        "test_killed_after_the_third_model_call",
        "test_nothing_is_paid_twice_after_the_last_call_was_limited",
        "test_other_message_keys_and_lists_of_messages",
        "test_parallel_nodes_with_equal_prompts_get_an_answer_each",
        "test_policies_of_functions",
        "test_prefill_sends_the_partial_answer_last",
        "test_recorded_tools_called_by_hand_in_a_node",
        "test_structured_output_is_paid_once",
        "test_tasks_of_the_functional_api",
        "test_the_rounds_of_a_loop_are_different_calls",
    }
)
"""Tests in which a coroutine must be told its graph."""
ALONE = frozenset(
    {
        "test_a_model_that_streams_in_one_way_only_serves_coroutines_too",
        "test_a_recorded_function_that_is_cancelled_is_unknown",
        "test_an_ensemble_keeps_its_samples_apart",
        "test_coroutines_do_the_same",
    }
)
"""Those of them that have coroutines only."""


def is_untold(item: Any) -> bool:
    """Whether a collected test cannot pass on this Python."""
    if sys.version_info >= (3, 11) or item.originalname not in TOLD:
        return False
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    flat = [one for p in parameters for one in (p if isinstance(p, tuple) else (p,))]
    alone = item.originalname in ALONE
    return alone or any(isinstance(one, str | bool) and one in COROUTINES for one in flat)
