/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: lookups, text and files that come back bit for bit, bad files, no memory;
 * and the slow-down that makes ranks uneven. */
#include <locale.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "distributed/balance/plan.h"
#include "distributed/balance/slowdown.h"
#include "nn/checksum.h"
#include "tensor/print.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static char folder[] = "/tmp/trek-plan-XXXXXX";

static char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static trek_plan *example(void)
{
    trek_plan *plan = trek_plan_new(3);
    assert_int_equal(trek_plan_add_shares(plan, 0, (const double[]){ 1.0 / 3, 1.0 / 3, 1.0 / 3 }), TREK_OK);
    assert_int_equal(trek_plan_add_shares(plan, 10, (const double[]){ 0.7, 0.3, 0 }), TREK_OK);
    assert_int_equal(trek_plan_add_counts(plan, 60, (const int64_t[]){ 23, 10, 1 }, 10), TREK_OK);
    assert_int_equal(trek_plan_add_counts(plan, INT64_MAX, (const int64_t[]){ 0, INT64_MAX, 1 }, INT64_MAX), TREK_OK);
    return plan;
}

static void expect_same(const trek_plan *a, const trek_plan *b)
{
    trek_decision x, y;
    assert_int_equal(trek_plan_ranks(a), trek_plan_ranks(b));
    assert_int_equal(trek_plan_size(a), trek_plan_size(b));
    for (int64_t k = 0; k < trek_plan_size(a); k++) {
        assert_true(trek_plan_get(a, k, &x) && trek_plan_get(b, k, &y));
        assert_true(x.from == y.from && x.kind == y.kind && x.anchor == y.anchor);
        assert_true((x.shares != NULL) == (x.kind == TREK_PLAN_KIND_SHARES) &&
                    (x.counts != NULL) == (x.kind == TREK_PLAN_KIND_COUNTS));
        const void *left = x.shares ? (const void *)x.shares : x.counts, *right = y.shares ? (const void *)y.shares : y.counts;
        assert_memory_equal(left, right, (size_t)trek_plan_ranks(a) * 8);
    }
}

static void steps_find_their_decision(void **state)
{
    static const struct { int64_t step, from; } cases[] = { { 0, 0 }, { 9, 0 }, { 10, 10 }, { 59, 10 },
        { 60, 60 }, { 1 << 30, 60 }, { INT64_MAX, INT64_MAX } };
    trek_plan *plan = example();
    trek_decision d;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        assert_true(trek_plan_at(plan, cases[k].step, &d));
        assert_int_equal(d.from, cases[k].from);
    }
    assert_false(trek_plan_at(plan, -1, &d));
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_true(trek_plan_at(plan, 12, &d) && d.kind == TREK_PLAN_KIND_SHARES && !d.counts && d.shares[0] == 0.7 &&
                d.shares[2] == 0);
    assert_true(trek_plan_at(plan, 70, &d) && d.kind == TREK_PLAN_KIND_COUNTS && !d.shares && d.counts[0] == 23 &&
                d.anchor == 10);
    trek_plan_free(&plan);
    assert_null(plan);
    trek_plan_free(&plan);

    plan = trek_plan_new(1);
    assert_false(trek_plan_at(plan, 5, &d));
    assert_int_equal(trek_plan_size(plan), 0);
    assert_int_equal(trek_plan_add_counts(plan, 4, (const int64_t[]){ 2 }, 1), TREK_OK);
    assert_false(trek_plan_at(plan, 3, &d));
    assert_true(trek_plan_at(plan, 4, &d));
    trek_plan_free(&plan);
}

static void same_step_replaces_and_cut_forgets(void **state)
{
    trek_plan *plan = example();
    trek_decision d;
    assert_int_equal(trek_plan_cut(plan, 60), TREK_OK);
    assert_int_equal(trek_plan_size(plan), 2);
    assert_int_equal(trek_plan_add_counts(plan, 10, (const int64_t[]){ 1, 2, 3 }, 1), TREK_OK);
    assert_int_equal(trek_plan_size(plan), 2);
    assert_true(trek_plan_at(plan, 10, &d) && d.kind == TREK_PLAN_KIND_COUNTS && d.counts[2] == 3);
    FAILS(trek_plan_add_counts(plan, 9, (const int64_t[]){ 1, 2, 3 }, 1), TREK_ERR_ARGUMENT, "step 9, after step 10");
    assert_int_equal(trek_plan_size(plan), 2);
    assert_int_equal(trek_plan_cut(plan, 0), TREK_OK);
    assert_int_equal(trek_plan_size(plan), 0);
    trek_plan_free(&plan);
}

static void text_comes_back(void **state)
{
    trek_plan *plan = example();
    char *text = trek_plan_text(plan), *again;
    assert_non_null(text);
    assert_string_equal(text,
                        "trek-plan 2\nranks 3\n"
                        "0 shares 0x1.5555555555555p-2 0x1.5555555555555p-2 0x1.5555555555555p-2\n"
                        "10 shares 0x1.6666666666666p-1 0x1.3333333333333p-2 0\n"
                        "60 counts 10 23 10 1\n"
                        "9223372036854775807 counts 9223372036854775807 0 9223372036854775807 1\nend 4 xxh64 9fa207917eaf1e5d\n");
    trek_plan *back = trek_plan_parse(text);
    assert_non_null(back);
    expect_same(plan, back);
    again = trek_plan_text(back);
    assert_string_equal(text, again);
    trek_string_free(&text);
    trek_string_free(&again);
    assert_null(text);
    trek_plan_free(&back);
    trek_plan_free(&plan);

    plan = trek_plan_new(7); /* without decisions */
    text = trek_plan_text(plan);
    back = trek_plan_parse(text);
    assert_int_equal(trek_plan_ranks(back), 7);
    expect_same(plan, back);
    trek_string_free(&text);
    trek_plan_free(&back);
    trek_plan_free(&plan);
}

/* Shares of all magnitudes, in text that C's own parser reads alike. */
static void every_bit_of_a_share_comes_back(void **state)
{
    for (uint32_t k = 0; k < 500; k++) {
        double shares[3];
        shares[0] = ldexp(0.5 + 0.25 * (1 + (double)test_number(21, k)), -(int)(k * 2));
        shares[1] = (1 - shares[0]) * (0.5 + 0.5 * (double)test_number(22, k));
        shares[2] = 1 - shares[0] - shares[1];
        trek_plan *plan = trek_plan_new(3);
        assert_int_equal(trek_plan_add_shares(plan, k, shares), TREK_OK);
        char *text = trek_plan_text(plan), *at = strstr(text, "shares ");
        trek_plan *back = trek_plan_parse(text);
        assert_non_null(back);
        expect_same(plan, back);
        at += strlen("shares ");
        for (int r = 0; r < 3; r++)
            assert_true(strtod(at, &at) == shares[r]);
        trek_string_free(&text);
        trek_plan_free(&back);
        trek_plan_free(&plan);
    }
}

static void locale_plays_no_part(void **state)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE" };
    bool set = false;
    for (size_t k = 0; k < sizeof names / sizeof *names && !set; k++)
        set = setlocale(LC_ALL, names[k]) != NULL;
    text_comes_back(state);
    setlocale(LC_ALL, "C");
    if (!set)
        skip(); /* no locale with a decimal comma is installed */
}

static void files_come_back(void **state)
{
    trek_plan *plan = example();
    char *path = in_folder("plan.txt");
    assert_int_equal(trek_plan_save(plan, path), TREK_OK);
    trek_plan *back = trek_plan_load(path);
    assert_non_null(back);
    expect_same(plan, back);
    trek_plan_free(&back);
    assert_int_equal(trek_plan_cut(plan, 10), TREK_OK);
    assert_int_equal(trek_plan_save(plan, path), TREK_OK); /* over the old one */
    back = trek_plan_load(path);
    assert_int_equal(trek_plan_size(back), 1);
    trek_plan_free(&back);

    FAILS(trek_plan_save(plan, in_folder("missing/plan.txt")), TREK_ERR_IO, "missing/plan.txt");
    REFUSED(trek_plan_load(in_folder("none.txt")), TREK_ERR_IO, "none.txt");
    REFUSED(trek_plan_load(folder), TREK_ERR_IO, folder);
    /* what cannot be replaced stays, and no temporary file is left */
    assert_int_equal(mkdir(in_folder("taken"), 0777), 0);
    FAILS(trek_plan_save(plan, in_folder("taken")), TREK_ERR_IO, "taken");
    assert_int_equal(rmdir(in_folder("taken")), 0);
    assert_int_equal(unlink(in_folder("plan.txt")), 0);
    trek_plan_free(&plan);
}

/* The text with its checksum at the end of its last line. */
static const char *sealed(const char *text)
{
    static char all[512];
    size_t length = strlen(text);
    length -= length > 0 && text[length - 1] == '\n';
    length = (size_t)snprintf(all, sizeof all, "%.*s xxh64 ", (int)length, text);
    assert_true(length + TREK_CHECKSUM_DIGITS + 2 <= sizeof all);
    trek_checksum_write(trek_checksum_of(all, length), all + length);
    memcpy(all + length + TREK_CHECKSUM_DIGITS, "\n", 2);
    return all;
}

static void bad_texts_are_refused(void **state)
{
#define HEAD "trek-plan 2\nranks 2\n"
    static const struct { const char *text, *names; } bad[] = {
        { "", "line 1" }, { "{}", "line 1" }, { "trek-plan 3\nranks 2\nend 0\n", "version" },
        { "trek-plan 1\nranks 2\nend 0\n", "a version other than 2" }, { "trek-plan 2\nend 0\n", "line 2" },
        { "trek-plan 2\nranks 0\nend 0\n", "ranks" }, { "trek-plan 2\nranks 99999999999\nend 0\n", "ranks" },
        { "trek-plan 2\nranks -1\nend 0\n", "line 2" }, { "trek-plan 2\nranks 2", "line 2" },
        { HEAD "\n", "line 3" }, { HEAD "end 1\n", "missing" }, { HEAD "end 0\nmore", "a checksum expected" },
        { HEAD "end 0 xxh64 0123456789abcdef\nmore", "after the end" }, { HEAD "end \n", "line 3" },
        { HEAD "0 shares 0x1.0000000000000p-1\nend 1\n", "a value is missing" }, { HEAD "0 shares 0 0\nend 1\n", "sum to 1" },
        { HEAD "0 shares 0x1.0000000000000p-1 0x1.0000000000000p-1 0\nend 1\n", "end here" },
        { HEAD "0 shares 0.5 0.5\nend 1\n", "line 3" }, { HEAD "0 shares 0x1.0p-1 0x1.0p-1\nend 1\n", "13" },
        { HEAD "0 shares 0x1.0000000000000p1 0\nend 1\n", "out of range" },
        { HEAD "0 shares 0x1.0000000000000p-1023 0\nend 1\n", "out of range" },
        { HEAD "0 shares 0x1.0000000000000q0 0\nend 1\n", "exponent" }, { HEAD "0 shares nan 0\nend 1\n", "line 3" },
        { HEAD "0 counts 0 1 1\nend 1\n", "anchor" }, { HEAD "0 counts 1 0 0\nend 1\n", "all are 0" },
        { HEAD "0 counts 1 -1 3\nend 1\n", "line 3" },
        { HEAD "0 counts 1 1 9223372036854775808\nend 1\n", "too large" }, { HEAD "0 parts 1 1\nend 1\n", "expected" },
        { HEAD "5 counts 1 1 1\n5 counts 1 1 1\nend 2\n", "line 4" },
        { HEAD "5 counts 1 1 1\n4 counts 1 1 1\nend 2\n", "ascend" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        const char *text = sealed(bad[k].text);
        REFUSED(trek_plan_parse(text), TREK_ERR_FORMAT, bad[k].names);
        write_text(in_folder("bad.txt"), text);
        REFUSED(trek_plan_load(in_folder("bad.txt")), TREK_ERR_FORMAT, "bad.txt: line");
    }
    unlink(in_folder("bad.txt"));
}

static void damage_is_noticed(void **state)
{
    trek_plan *plan = example();
    char *text = trek_plan_text(plan);
    size_t length = strlen(text);
    for (size_t bit = 0; bit < 8 * length; bit++) {
        text[bit / 8] ^= (char)(1u << bit % 8);
        if (trek_plan_parse(text) || trek_error_status() != TREK_ERR_FORMAT)
            fail_msg("bit %zu: %s", bit, text);
        if (bit / 8 > strlen(HEAD) && bit / 8 < length - 25 && text[bit / 8]) /* a NUL ends it there */
            expect_error(TREK_ERR_FORMAT, "plan: the checksum does not match: the plan is damaged");
        trek_error_clear();
        text[bit / 8] ^= (char)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < length; cut++) {
        char kept = text[cut];
        text[cut] = 0;
        REFUSED(trek_plan_parse(text), TREK_ERR_FORMAT, "plan");
        text[cut] = kept;
    }
    trek_plan *whole = trek_plan_parse(text);
    expect_same(plan, whole);
    trek_plan_free(&whole);
    trek_string_free(&text);
    trek_plan_free(&plan);
}

static void without_a_checksum(void **state)
{
    trek_plan *plan = trek_plan_parse(sealed(HEAD "0 counts 1 1 2\n7 counts 1 2 1\nend 2\n"));
    assert_non_null(plan);
    assert_int_equal(trek_plan_size(plan), 2);
    trek_plan_free(&plan);
    REFUSED(trek_plan_parse(HEAD "0 counts 1 1 2\nend 1\n"), TREK_ERR_FORMAT, "the checksum is missing");
    REFUSED(trek_plan_parse(HEAD "end 0"), TREK_ERR_FORMAT, "the checksum is missing");
    REFUSED(trek_plan_parse(HEAD "0 counts 1 1 2\nend 1 xxh64 0123456789abcdef\n"), TREK_ERR_FORMAT,
            "the checksum does not match");
}

static void bad_arguments_are_refused(void **state)
{
    trek_decision d;
    for (int k = 0; k < 3; k++) {
        REFUSED(trek_plan_new((const int[]){ 0, -3, (1 << 20) + 1 }[k]), TREK_ERR_ARGUMENT, "ranks");
    }
    trek_plan *plan = trek_plan_new(2);
    static const double shares[][2] = { { 0.5, 0.6 }, { -0.5, 1.5 }, { NAN, 1 }, { 1, 0x1p-1040 }, { 0, 0 }, { INFINITY, 0 } };
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        FAILS(trek_plan_add_shares(plan, 0, shares[k]), TREK_ERR_ARGUMENT, "share");
    }
    FAILS(trek_plan_add_counts(plan, 0, (const int64_t[]){ -1, 5 }, 1), TREK_ERR_ARGUMENT, "negative");
    FAILS(trek_plan_add_counts(plan, 0, (const int64_t[]){ 0, 0 }, 1), TREK_ERR_ARGUMENT, "all are 0");
    FAILS(trek_plan_add_counts(plan, 0, (const int64_t[]){ 1, 1 }, 0), TREK_ERR_ARGUMENT, "anchor");
    FAILS(trek_plan_add_counts(plan, -1, (const int64_t[]){ 1, 1 }, 1), TREK_ERR_ARGUMENT, "step -1");
    assert_int_equal(trek_plan_size(plan), 0);
    assert_false(trek_plan_get(plan, 0, &d));
    expect_error(TREK_ERR_ARGUMENT, "k: 0; there are 0 decisions");
    assert_false(trek_plan_at(NULL, 0, &d));
    expect_error(TREK_ERR_ARGUMENT, "plan");
    FAILS(trek_plan_add_shares(plan, 0, NULL), TREK_ERR_ARGUMENT, "shares");
    REFUSED(trek_plan_text(NULL), TREK_ERR_ARGUMENT, "plan");
    REFUSED(trek_plan_parse(NULL), TREK_ERR_ARGUMENT, "text");
    REFUSED(trek_plan_load(NULL), TREK_ERR_ARGUMENT, "path");
    FAILS(trek_plan_save(plan, NULL), TREK_ERR_ARGUMENT, "path");
    trek_plan_free(&plan);
}

/* With each allocation failing in turn: MEMORY, nothing leaked, and the plan as it was. */
static void memory_may_run_out(void **state)
{
    trek_plan *plan = example();
    const char *path = in_folder("memory.txt");
    bool done = false;
    for (int64_t at = 1; !done; at++) {
        int64_t before = test_allocator_blocks();
        test_allocator_restart(at);
        char *text = trek_plan_text(plan);
        trek_plan *back = text ? trek_plan_parse(text) : NULL;
        trek_status status = back ? trek_plan_save(back, path) : TREK_ERR_MEMORY;
        trek_plan *loaded = status == TREK_OK ? trek_plan_load(path) : NULL;
        if (loaded) {
            int64_t size = trek_plan_size(loaded);
            status = trek_plan_add_counts(loaded, INT64_MAX, (const int64_t[]){ 7, 7, 7 }, 7); /* replaces the last */
            trek_decision d;
            assert_true(trek_plan_get(loaded, size - 1, &d) && d.counts[0] == (status == TREK_OK ? 7 : 0));
            assert_int_equal(trek_plan_size(loaded), size);
        }
        test_allocator_restart(0);
        done = loaded && status == TREK_OK;
        assert_int_equal(trek_error_status(), done ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
        trek_plan_free(&loaded);
        trek_plan_free(&back);
        trek_string_free(&text);
        assert_int_equal(test_allocator_blocks(), before);
        assert_true(at < 100);
    }
    unlink(path);
    trek_plan_free(&plan);
}

/* --- slow-down ------------------------------------------------------------------------- */

static double clock_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void factors_follow_the_text(void **state)
{
    trek_slowdown s[4] = { 0 };
    assert_int_equal(trek_slowdown_read("2/10:3/20:0.5/30:5,1,3.5s,0", s, 4), TREK_OK);
    static const struct { int64_t batch; double factor; } cases[] = { { 0, 2 }, { 9, 2 }, { 10, 3 }, { 19, 3 }, { 20, 1 },
                                                                      { 29, 1 }, { 1000, 5 } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        assert_true(trek_slowdown_factor(&s[0], cases[k].batch, 7) == cases[k].factor);
    assert_true(!s[0].sleep && trek_slowdown_factor(&s[1], 3, 7) == 1);
    assert_true(s[2].sleep && trek_slowdown_factor(&s[2], 3, 7) == 3.5);
    assert_true(trek_slowdown_factor(&s[3], 3, 7) == 1);
    assert_true(trek_slowdown_factor(NULL, 3, 7) == 1);
    assert_int_equal(trek_slowdown_read("7,3,4", s, 1), TREK_OK); /* a process with fewer ranks */
    assert_true(trek_slowdown_factor(&s[0], 0, 7) == 7 && trek_slowdown_factor(&s[1], 3, 7) == 1);
    assert_int_equal(trek_slowdown_read("4", s, 3), TREK_OK); /* and one with more */
    assert_true(trek_slowdown_factor(&s[0], 0, 7) == 4);
    assert_int_equal(trek_slowdown_read("1~5,1/3:2~5s,7~5", s, 3), TREK_OK); /* another one in each second */
    assert_true(!s[0].sleep && s[1].sleep);
    double sum = 0, last = 0;
    for (int64_t second = 0; second < 1000; second++) {
        double factor = trek_slowdown_factor(&s[0], 0, second * 1000000000);
        assert_true(factor >= 1 && factor < 5 && factor != last);
        assert_true(trek_slowdown_factor(&s[0], 9, second * 1000000000 + 999999999) == factor);
        assert_true(trek_slowdown_factor(&s[1], 0, second * 1000000000) != factor);
        assert_true(trek_slowdown_factor(&s[1], 3, second * 1000000000) >= 2);
        assert_true(trek_slowdown_factor(&s[2], 3, second * 1000000000) == 7);
        sum += factor;
        last = factor;
    }
    assert_true(fabs(sum / 1000 - 3) < 0.2);
}

static void wrong_texts_are_refused(void **state)
{
    static const char *const texts[] = { "", "x", "1,", ",1", "-1", "nan", "inf", "1e7", "1,2q", "1ss", "1s/3:2", "1/3", "1/3:",
                                         "1/:2",
                                         "1/0:2", "1~", "1~x", "1~2/3:4", "1~2~3", "1~-1", "1/5:2/5:3", "1/5:2/4:3", "1 ,2",
                                         "1/1:1/2:1/3:1/4:1/5:1/6:1/7:1/8:1",
                                         "1,1,x" };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        trek_slowdown s[2] = { 0 };
        if (trek_slowdown_read(texts[k], s, 2) != TREK_ERR_ARGUMENT || !strstr(trek_error(), "TREK_SLOWDOWN"))
            fail_msg("\"%s\": %s", texts[k], trek_error());
        trek_error_clear();
    }
}

static void time_passes(void **state)
{
    for (int sleeping = 0; sleeping < 2; sleeping++) {
        trek_slowdown s = { .points = 1, .point = { { 0, 3 } }, .sleep = sleeping };
        double start = clock_ms(CLOCK_MONOTONIC), busy = clock_ms(CLOCK_THREAD_CPUTIME_ID);
        trek_slowdown_apply(&s, 0, 20000000); /* 20 ms: 40 more */
        double took = clock_ms(CLOCK_MONOTONIC) - start;
        busy = clock_ms(CLOCK_THREAD_CPUTIME_ID) - busy;
        assert_true(took >= 40);
        assert_true(sleeping ? busy < 20 : busy > 1); /* on a loaded machine a busy thread gets less than the time that passes */
        start = clock_ms(CLOCK_MONOTONIC);
        trek_slowdown_apply(&s, 0, 0);
        trek_slowdown_apply(&s, 0, -1000000000);
        trek_slowdown_apply(NULL, 0, 1000000000);
        s.point[0].factor = 1;
        trek_slowdown_apply(&s, 0, 1000000000);
        assert_true(clock_ms(CLOCK_MONOTONIC) - start < 900);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_find_their_decision), cmocka_unit_test(same_step_replaces_and_cut_forgets),
        cmocka_unit_test(text_comes_back), cmocka_unit_test(every_bit_of_a_share_comes_back),
        cmocka_unit_test(locale_plays_no_part), cmocka_unit_test(files_come_back), cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(damage_is_noticed), cmocka_unit_test(without_a_checksum), cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(memory_may_run_out), cmocka_unit_test(factors_follow_the_text),
        cmocka_unit_test(wrong_texts_are_refused), cmocka_unit_test(time_passes),
    };
    if (test_allocator_use() != TREK_OK || !mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(folder) != 0 || failed; /* nothing is left in it */
}
