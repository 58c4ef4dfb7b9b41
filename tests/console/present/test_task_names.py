"""Names in little room: no two read alike, and what all begin with is said once."""

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.present.tasks import TaskNames
from redrive.console.text.text import cells, one_line, shared_prefix

long_names = st.lists(
    st.builds(
        lambda head, number, tail: f"{head * 12}{number}{tail * 12}",
        st.sampled_from(["load_", "extract.", "a"]),
        st.integers(0, 300),
        st.sampled_from(["_part", "/x", "b"]),
    ),
    min_size=1,
    max_size=40,
    unique=True,
)


@given(long_names, st.integers(8, 40))
def test_no_two_names_read_alike_however_little_room_there_is(names, size):
    shown = TaskNames(names)
    texts = [shown.short(name, size, "…") for name in names]
    assert all(cells(text) <= size for text in texts)
    assert len(set(texts)) == len(texts)


def test_names_that_differ_in_their_middle_show_where_they_differ():
    names = [f"process_the_orders_of_{land}_and_write_the_report" for land in ("france", "poland")]
    assert [TaskNames(names).short(name, 12, "…") for name in names] == ["…france_and…", "…poland_and…"]


def test_what_all_names_begin_with_is_left_out_up_to_a_separator():
    names = [f"NFCORE_RNASEQ:ALIGN:{step}" for step in ("STAR_INDEX", "STAR", "SORT")]
    shown = TaskNames(names)
    assert shown.prefix == "NFCORE_RNASEQ:ALIGN:"
    assert [shown.short(name, 20, "…") for name in names] == ["STAR_INDEX", "STAR", "SORT"]
    assert shown.longest == len("STAR_INDEX")


def test_words_of_a_name_and_short_prefixes_are_kept():
    assert shared_prefix(["load_part_1", "load_part_2", "load_part_3"]) == ""
    assert shared_prefix(["raw.a", "raw.b", "raw.c"]) == ""
    assert shared_prefix(["pipeline.", "pipeline.a", "pipeline.b"]) == ""
    assert shared_prefix(["pipeline.a", "pipeline.b"]) == ""


def test_names_that_begin_differently_and_lose_little_are_cut_at_their_end():
    names = ["fetch_orders", "fetch_invoices", "fetch_payments", "import_customers", "settle"]
    short = [TaskNames(names).short(name, 10, "…") for name in names]
    assert short == ["fetch_ord…", "fetch_inv…", "fetch_pay…", "import_cu…", "settle"]
    assert TaskNames(names).short("import_customers", 9, "…") == "impo…mers", "too much would be lost"
    alike = TaskNames([*names, "fetch_invoked"])
    assert [alike.short(name, 10, "…") for name in names[:2]] == ["fetch_ord…", "fetch…ices"], "two begin alike"


def test_a_name_of_another_run_is_shortened_all_the_same():
    assert TaskNames(["a"]).short("x" * 30, 9, "…") == "xxxx…xxxx"
    assert TaskNames(["a\nb"]).short("a\nb", 9, "…") == one_line("a\nb")


def test_names_that_differ_at_the_same_part_in_two_families_do_not_read_alike():
    names = [f"{head * 12}{number}{'_part' * 12}" for head in ("load_", "extract.") for number in (0, 1)]
    shown = TaskNames(names)
    assert len({shown.short(name, 8, "…") for name in names}) == 4
