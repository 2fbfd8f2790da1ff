/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/progress: what is printed on a terminal and elsewhere, how often, and of numbers that are none. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "monitor/progress.h"
#include "tensor/trace.h"
#include "tests/support/support.h"

/* --- a stream in memory, of which no system knows whether it is a terminal ---------------- */

static char *text;
static size_t text_size;
static FILE *stream;

static int open_stream(void **state)
{
    (void)state;
    trek_error_clear();
    stream = open_memstream(&text, &text_size);
    return stream ? 0 : -1;
}

static int close_stream(void **state)
{
    (void)state;
    int failed = fclose(stream); /* it stayed open */
    free(text);
    text = NULL;
    return failed;
}

static const char *printed(void)
{
    fflush(stream);
    return text;
}

static int count_of(const char *in, const char *part)
{
    int count = 0;
    for (const char *at = in; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* That part is printed, and what follows it. */
static const char *expect(const char *part)
{
    const char *found = strstr(printed(), part);
    if (!found)
        fail_msg("\"%s\" is not in \"%s\"", part, text);
    return found + strlen(part);
}

static void expect_none(const char *part)
{
    if (strstr(printed(), part))
        fail_msg("\"%s\" is in \"%s\"", part, text);
}

static trek_progress *progress(int64_t epochs, int64_t batches, int terminal)
{
    trek_progress *p = trek_progress_new_with(
        &(trek_progress_opts){ .epochs = epochs, .batches = batches, .stream = stream, .terminal = terminal });
    assert_non_null(p);
    return p;
}

static void nap(long ms) { nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL); }

/* --- durations ------------------------------------------------------------------------------ */

static void durations(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = { { 0.42, "420ms" },   { 1.24, "1.2s" },       { 59.97, "1m 0s" }, { 272, "4m 32s" },  { 11520, "3h 12m" },
                  { 0, "0ms" },        { 0.9999, "1.0s" },     { 3599.8, "1h 0m" }, { -1, "?" },       { (double)NAN, "?" },
                  { 1e300, "?" },      { -0.0, "0ms" },        { 0.0004, "0ms" },   { 0.9994, "999ms" }, { 59.94, "59.9s" },
                  { 3599.4, "59m 59s" }, { 1e9, "277777h 47m" }, { (double)INFINITY, "?" }, { 119.6, "2m 0s" } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char duration[32];
        assert_ptr_equal(trek_duration_text(cases[k].seconds, duration), duration);
        assert_string_equal(duration, cases[k].text);
    }
}

/* --- elsewhere than on a terminal ----------------------------------------------------------- */

static void one_line_an_epoch(void **state)
{
    (void)state;
    trek_progress *p = progress(2, 4, 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int k = 0; k < 4; k++)
            trek_progress_update(p, epoch, k + 1, k + epoch);
        trek_progress_epoch(p, epoch, epoch ? "accuracy" : NULL, 0.75);
        assert_int_equal(count_of(printed(), "\n"), epoch + 1); /* at once */
    }
    trek_progress_free(&p);
    assert_null(p);
    trek_progress_free(&p);
    assert_int_equal(count_of(printed(), "\n"), 2);
    expect_none("\r");
    expect_none("\x1b");
    expect("epoch 1/2  loss 1.5  ");
    expect("  ETA ");
    assert_null(strstr(expect("epoch 2/2  loss 2.5  accuracy 0.75  "), "ETA")); /* nothing is left */
}

/* A loss that is not a number is left out of the mean, one that is infinite is told. */
static void losses_that_are_no_numbers(void **state)
{
    (void)state;
    trek_progress *p = progress(4, 3, TREK_OFF);
    const double losses[4][3] = { { 1, NAN, 4 }, { NAN, NAN, NAN }, { 1, INFINITY, 1 }, { INFINITY, -INFINITY, 1 } };
    for (int epoch = 0; epoch < 4; epoch++) {
        for (int k = 0; k < 3; k++)
            trek_progress_update(p, epoch, k + 1, losses[epoch][k]);
        trek_progress_epoch(p, epoch, "accuracy", epoch == 1 ? NAN : epoch == 2 ? -INFINITY : 0.5);
    }
    trek_progress_free(&p);
    expect("epoch 1/4  loss 2.5  accuracy 0.5  ");
    expect("epoch 2/4  accuracy nan  ");
    expect("epoch 3/4  loss inf  accuracy -inf  ");
    expect("epoch 4/4  loss nan  accuracy 0.5  ");
    expect_none("null");
}

/* Of an epoch that was left without its line nothing is left; one without a batch has no loss. */
static void epochs_left_and_empty(void **state)
{
    (void)state;
    trek_progress *p = progress(9, 2, TREK_OFF);
    trek_progress_update(p, 0, 1, 100);
    trek_progress_update(p, 5, 1, 3);
    trek_progress_epoch(p, 5, NULL, 0);
    trek_progress_epoch(p, 6, NULL, 0);
    trek_progress_free(&p);
    expect("epoch 6/9  loss 3  ");
    assert_true(strncmp(expect("epoch 7/9  "), "loss", 4) != 0);
}

/* --- on a terminal -------------------------------------------------------------------------- */

/* At most 10 a second, however often it is called. */
static void a_line_is_rewritten(void **state)
{
    (void)state;
    trek_progress *p = progress(1, 100000, 1);
    int64_t start = trek_clock_ns(), batches = 0;
    while (trek_clock_ns() - start < 250000000)
        trek_progress_update(p, 0, batches++ % 100000, 0.5);
    int64_t tenths = (trek_clock_ns() - start) / 100000000;
    int lines = count_of(printed(), "\r");
    assert_in_range(lines, 1, tenths + 1);
    assert_int_equal(count_of(printed(), "\x1b[K"), lines); /* what a longer one left is erased */
    expect("\repoch 1/1  batch 0/100000  loss 0.5\x1b[K");
    expect_none("\n");
    trek_progress_free(&p);
    assert_int_equal(count_of(printed(), "\n"), 1); /* the line is ended */
}

/* The first batch of an epoch is shown at once; an epoch's line stays, and is ended once. */
static void epochs_on_a_terminal(void **state)
{
    (void)state;
    trek_progress *p = progress(2, 4, 1);
    int64_t start = trek_clock_ns();
    trek_progress_update(p, 0, 1, 2);
    trek_progress_update(p, 0, 2, 4); /* too soon to be shown, but counted */
    bool soon = trek_clock_ns() - start < 90000000;
    trek_progress_epoch(p, 0, "accuracy", 1);
    trek_progress_update(p, 1, 1, 7);
    trek_progress_epoch(p, 1, "accuracy", 1);
    trek_progress_free(&p);
    expect("\repoch 1/2  batch 1/4  loss 2");
    if (soon)
        expect_none("batch 2/4");
    expect("\repoch 1/2  loss 3  accuracy 1  ");
    expect("\repoch 2/2  batch 1/4  loss 7");
    expect("\repoch 2/2  loss 7  accuracy 1  ");
    assert_int_equal(count_of(printed(), "\n"), 2);
    assert_int_equal(text[text_size - 1], '\n');
}

static void time_that_is_left(void **state)
{
    (void)state;
    trek_progress *p = progress(2, 10, 1);
    nap(50);
    trek_progress_update(p, 1, 0, NAN); /* a half of all */
    const char *left = expect("\repoch 2/2  batch 0/10  ETA ");
    double ms = strtod(left, NULL);
    if (!(ms >= 50 || strstr(left, "ms") != left + strspn(left, "0123456789"))) /* as much again */
        fail_msg("%s", left);
    expect_none("loss");
    nap(110);
    trek_progress_update(p, 1, 10, NAN); /* all */
    assert_null(strstr(expect("batch 10/10"), "ETA"));
    nap(110);
    trek_progress_update(p, 1, 11, NAN); /* more than all */
    assert_null(strstr(expect("batch 11/10"), "ETA"));
    trek_progress_free(&p);
}

/* How many batches there are is not known: neither are their share nor what is left, until an epoch is done. */
static void unknown_batches(void **state)
{
    (void)state;
    trek_progress *p = progress(3, 0, 1);
    trek_progress_update(p, 0, 123, 0.25);
    expect("\repoch 1/3  batch 123  loss 0.25\x1b[K");
    expect_none("ETA");
    trek_progress_epoch(p, 0, NULL, 0);
    expect("epoch 1/3  loss 0.25  ");
    expect("  ETA ");
    trek_progress_free(&p);
}

/* What the stream is, is asked for where the options do not say. */
static void the_stream_is_asked(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    const char *name = master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 ? ptsname(master) : NULL;
    FILE *terminal = name ? fopen(name, "w") : NULL;
    if (!terminal)
        skip();
    static const int forms[] = { 0, TREK_OFF };
    for (int k = 0; k < 2; k++) {
        trek_progress *p = trek_progress_new_with(
            &(trek_progress_opts){ .epochs = 1, .batches = 9, .stream = terminal, .terminal = forms[k] });
        trek_progress_update(p, 0, 4 + k, 1);
        trek_progress_free(&p);
    }
    fprintf(terminal, "end");
    fflush(terminal);
    char seen[256] = "";
    size_t size = 0;
    while (size < sizeof seen - 1 && !strstr(seen, "end")) {
        ssize_t got = read(master, seen + size, sizeof seen - 1 - size);
        assert_true(got > 0);
        size += (size_t)got;
        seen[size] = 0;
    }
    assert_non_null(strstr(seen, "\repoch 1/1  batch 4/9  loss 1"));
    assert_null(strstr(seen, "batch 5/9"));
    fclose(terminal);
    close(master);
}

/* --- what is not given ------------------------------------------------------------------------ */

static void stderr_is_the_default(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    assert_true(file && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    trek_progress *p = trek_progress_new(1, 2);
    trek_progress_update(p, 0, 1, 5);
    trek_progress_epoch(p, 0, NULL, 0);
    trek_progress_free(&p);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    char seen[128] = "";
    rewind(file);
    assert_non_null(fgets(seen, sizeof seen, file));
    assert_int_equal(strncmp(seen, "epoch 1/1  loss 5  ", 19), 0);
    fclose(file);
}

static void bad_calls(void **state)
{
    (void)state;
    static const struct { int64_t epochs, batches; } wrong[] = { { 0, 5 }, { -1, 5 }, { INT64_MIN, 0 }, { 1, -1 } };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_null(trek_progress_new(wrong[k].epochs, wrong[k].batches));
        assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
        assert_int_equal(strncmp(trek_error(), "progress: ", 10), 0);
        trek_error_clear();
    }
    assert_null(trek_progress_new_with(NULL));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    trek_error_clear();
    trek_progress_update(NULL, 0, 0, 0);
    trek_progress_epoch(NULL, 0, NULL, 0);
    trek_progress_free(NULL);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Without memory for a line it is left out; without any there is no progress. */
static void no_memory(void **state)
{
    (void)state;
    assert_int_equal(test_allocator_use(), TREK_OK);
    test_memory.fail_count = 2; /* it is asked twice */
    test_allocator_restart(1);
    assert_null(trek_progress_new(1, 1));
    assert_int_equal(trek_error_status(), TREK_ERR_MEMORY);
    trek_error_clear();
    test_allocator_restart(0);
    trek_progress *p = progress(2, 1, TREK_OFF);
    test_allocator_restart(1);
    trek_progress_epoch(p, 0, NULL, 0);
    trek_error_clear();
    test_allocator_restart(0);
    trek_progress_epoch(p, 1, NULL, 0);
    trek_progress_free(&p);
    assert_int_equal(test_memory.blocks, 0);
    expect_none("epoch 1/2");
    expect("epoch 2/2  ");
    trek_allocator_set(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_stream, close_stream)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(durations),
        TEST(one_line_an_epoch),
        TEST(losses_that_are_no_numbers),
        TEST(epochs_left_and_empty),
        TEST(a_line_is_rewritten),
        TEST(epochs_on_a_terminal),
        TEST(time_that_is_left),
        TEST(unknown_batches),
        TEST(the_stream_is_asked),
        TEST(stderr_is_the_default),
        TEST(bad_calls),
        TEST(no_memory),
    };
    return cmocka_run_group_tests_name("monitor", tests, NULL, NULL);
}
