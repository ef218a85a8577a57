"""Every row of the list of public failures that concerns media, prompts, numerics and serving has its test.

A test of a row bears its number (`test_b01_...`) and stands in this folder, unless one that was there already
shows the same: then it is named here, as file and name. Rows that cannot apply say why.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SECTIONS = {
    "A. media in": "B01 B02 B03 B05 B06 B07 B09 B10 B11 B13 B14 B15 B17 B18 B19 B21 B22 B23 B25 B26",
    "C. prompts and guards": "B38 B39 B41 B42 B43 B45 B46 B47",
    "D. sampling and numerics": (
        "B49 B50 B51 B53 B54 B55 B57 B58 B59 B61 B62 B63 B65 B66 B67 B69 B70 B71 B73"
    ),
    "H. serving": "B97 B98 B99 B101 B102 B103 B105 B106 B107 B109 B110 B111 B113 B114 B115",
}
ELSEWHERE = {
    "B11": [
        "test_world.py::test_a_bad_request_is_refused_alike_with_and_without_weights"
    ],  # both rates named
    "B23": ["tasks/test_generate.py::test_a_round_picture_stays_round"],
    "B41": ["tasks/test_defaults.py::test_the_table_is_what_was_published"],
    "B43": ["test_guard.py::test_words_are_found_as_a_reader_would"],  # two-word entries
    "B45": ["test_guard.py::test_words_are_found_as_a_reader_would"],  # overlaps with an allowed phrase
    "B46": [
        "test_guard.py::test_a_guard_that_breaks_blocks",
        "test_guard.py::test_the_vendors_guard_is_refused_where_it_is_not_installed",
        "test_guard.py::test_the_receipt_tells_every_verdict_and_off",
    ],
    "B47": [
        "test_guard.py::test_what_ships_passes",
        "test_guard.py::test_the_receipt_tells_every_verdict_and_off",  # a negative prompt is skipped
    ],
    "B50": [
        "test_flow.py::test_sigmas_are_the_printed_ones",
        "tasks/test_defaults.py::test_the_table_is_what_was_published",
    ],
    "B51": [
        "test_flow.py::test_noise_ignores_the_global_generator_and_leaves_it_alone",
        "test_flow.py::test_noise_is_standard_normal_and_depends_on_seed_kind_and_step",
        "test_sampling.py::test_the_callers_own_noise_starts_the_run_and_feeds_the_sde",
    ],
    "B54": ["test_requests.py::test_what_cannot_be_generated_is_refused_by_name"],
    "B55": ["tasks/test_generate.py::test_a_distilled_checkpoint_takes_no_other_schedule"],
    "B57": ["test_requests.py::test_frames_are_rounded_up_to_4n_plus_1_and_both_are_told"],
    "B62": ["test_stages.py::test_every_stage_is_named", "test_stages.py::test_no_file_is_written"],
    "B63": ["codecs/test_wan_tiles.py::test_tiles_differ_little_from_the_whole"],
    "B65": ["oracles/test_wan_vae.py::test_a_stream_of_uneven_pieces_decodes_and_encodes_as_the_whole"],
    "B66": [
        "test_options_walk.py::test_another_value_gives_another_result",
        "tasks/test_modes.py::test_weights_change_what_is_drawn_and_the_heavier_control_counts_more",
    ],
    "B97": [
        "serve/test_fetch.py::test_each_redirect_is_checked_anew",
        "serve/test_fetch.py::test_a_url_of_a_named_host_is_fetched_once_resolved",
    ],
    "B98": ["serve/test_trust.py::test_nothing_else_is_read"],
    "B99": ["serve/test_trust.py::test_a_body_over_the_limit_is_cut_off"],
    "B101": [
        "serve/test_contract.py::test_a_client_that_leaves_a_stream_stops_its_answer",
        "serve/test_videos.py::test_leaving_a_request_that_waits_stops_its_steps",
        "serve/test_worker.py::test_stopping_ends_a_ticket_after_its_step_and_a_talk_after_its_token",
    ],
    "B102": ["serve/test_videos.py::test_a_job_goes_on_when_its_client_has_left"],
    "B103": ["serve/test_videos.py::test_cancelling_stops_within_a_step_and_the_next_job_is_made"],
    "B105": ["serve/test_videos.py::test_history_is_bounded"],
    "B106": ["serve/test_trust.py::test_a_request_that_fails_fails_alone"],
    "B107": [
        "test_decode.py::test_text_comes_in_whole_characters_and_once",
        "codecs/test_text.py::test_spelling_gives_whole_characters_once",
    ],
    "B109": [
        "tasks/test_reason.py::test_an_answer_ends_before_a_stop_string_wherever_token_borders_fall",
        "tasks/test_reason.py::test_a_stop_string_is_let_pass_in_thinking_and_ends_the_answer",
        "test_decode.py::test_the_finder_finds_the_first_string_in_any_cutting",
    ],
    "B110": ["tasks/test_reason.py::test_what_only_begins_a_stop_string_comes_out_at_last"],
    "B111": ["serve/test_trust.py::test_every_route_but_health_wants_a_key"],
    "B113": [
        "serve/test_contract.py::test_what_waits_beside_others_is_answered_as_alone",
        "test_slots.py::test_sixteen_at_once_say_what_each_says_alone",
    ],
    "B114": ["serve/test_trust.py::test_a_second_server_on_the_same_folder_is_refused"],
    "B115": [
        "test_hub.py::test_what_may_pass_is_tried_again",
        "test_hub.py::test_what_will_not_pass_is_not_tried_again",
    ],
}
NOT_OURS = {
    "B73": "no sequence is split over devices, so there is no mask to split again at each step",
}


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def rows_here() -> set[str]:
    """The numbers that tests of this folder bear."""
    names = [name for file in Path(__file__).parent.glob("test_*.py") for name in functions(file)]
    return {f"B{number}" for name in names for number in re.findall(r"(?:^test|_)_?b(\d{2,3})(?=_)", name)}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_has_a_test_or_a_reason(section: str) -> None:
    here = rows_here()
    wrong = [
        row for row in SECTIONS[section].split() if (row in here or row in ELSEWHERE) == (row in NOT_OURS)
    ]
    assert not wrong


def test_every_test_that_is_named_is_there() -> None:
    for names in ELSEWHERE.values():
        for name in names:
            file, _, function = name.partition("::")
            assert function in functions(TESTS / file), name
