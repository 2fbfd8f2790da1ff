/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/progress: what is printed on a terminal and elsewhere, how often, and of numbers that are none. */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "monitor/progress_internal.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- a stream in memory, of which no system knows whether it is a terminal ---------------- */

static char *text;
static size_t text_size;
static FILE *stream;

static int open_stream(void **state)
{
    trek_error_clear();
    unsetenv("LC_ALL");
    stream = open_memstream(&text, &text_size);
    return stream ? 0 : -1;
}

static int close_stream(void **state)
{
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

static double clock_s;

static int64_t told_clock(void) { return (int64_t)((clock_s + 1000) * 1e9 + 0.5); }

/* On a terminal so wide, at a time that the test tells, in ASCII. */
static trek_progress *progress_at(int64_t epochs, int64_t batches, int terminal, int width)
{
    trek_progress *p = trek_progress_new_with(&(trek_progress_opts){
        .epochs = epochs, .batches = batches, .stream = stream, .terminal = terminal, .width = width, .batch_size = 0 });
    assert_non_null(p);
    clock_s = 0;
    trek_progress_set_clock(p, told_clock);
    return p;
}

static void update_at(trek_progress *p, int64_t epoch, int64_t batch, double loss, double seconds)
{
    clock_s = seconds;
    trek_progress_update(p, epoch, batch, loss);
}

/* --- durations ------------------------------------------------------------------------------ */

static void durations(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = { { 0.42, "420ms" },   { 1.24, "1.2s" },       { 59.97, "1m 0s" }, { 272, "4m 32s" },  { 11520, "3h 12m" },
                  { 0, "0ms" },        { 0.9999, "1.0s" },     { 3599.8, "1h 0m" }, { -1, "?" },       { (double)NAN, "?" },
                  { 1e300, "?" },      { -0.0, "0ms" },        { 0.0004, "0ms" },   { 0.9994, "999ms" }, { 59.94, "59.9s" },
                  { 3599.4, "59m 59s" }, { 1e9, "277777h 47m" }, { (double)INFINITY, "?" }, { 119.6, "2m 0s" } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char duration[32];
        assert_ptr_equal(trek_duration_format(cases[k].seconds, duration, sizeof duration), duration);
        assert_string_equal(duration, cases[k].text);
    }
    char few[4];
    assert_string_equal(trek_duration_format(272, few, sizeof few), "4m ");
}

/* --- elsewhere than on a terminal ----------------------------------------------------------- */

static void one_line_an_epoch(void **state)
{
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
    trek_progress *p = progress(1, 100000, 1);
    int64_t start = trek_clock_ns(), batches = 0;
    while (trek_clock_ns() - start < 250000000)
        trek_progress_update(p, 0, batches++ % 100000, 0.5);
    int64_t tenths = (trek_clock_ns() - start) / 100000000;
    int lines = count_of(printed(), "\r");
    assert_in_range(lines, 1, tenths + 1);
    assert_int_equal(count_of(printed(), "\x1b[K"), lines); /* what a longer one left is erased */
    expect("\repoch 1/1 ");
    expect("  0/100000  loss 0.5  ");
    expect_none("\n");
    trek_progress_free(&p);
    assert_int_equal(count_of(printed(), "\n"), 1); /* the line is ended */
}

/* The first batch of an epoch is shown at once; an epoch's line stays, and is ended once. */
static void epochs_on_a_terminal(void **state)
{
    trek_progress *p = progress(2, 4, 1);
    int64_t start = trek_clock_ns();
    trek_progress_update(p, 0, 1, 2);
    trek_progress_update(p, 0, 2, 4); /* too soon to be shown, but counted */
    bool soon = trek_clock_ns() - start < 90000000;
    trek_progress_epoch(p, 0, "accuracy", 1);
    trek_progress_update(p, 1, 1, 7);
    trek_progress_epoch(p, 1, "accuracy", 1);
    trek_progress_free(&p);
    expect("  1/4  loss 2");
    if (soon)
        expect_none("2/4");
    expect("\r\x1b[Kepoch 1/2  loss 3  accuracy 1  ");
    expect("  1/4  loss 7");
    expect("\r\x1b[Kepoch 2/2  loss 7  accuracy 1  ");
    assert_int_equal(count_of(printed(), "\n"), 2);
    assert_int_equal(text[text_size - 1], '\n');
}

/* By the speed of late, and by what the ends of epochs took. */
static void time_that_is_left(void **state)
{
    trek_progress *p = progress_at(2, 10, 1, 80);
    for (int batch = 1; batch <= 10; batch++)
        update_at(p, 0, batch, NAN, batch); /* a second each */
    expect("50%  5/10  1 batches/s  5.0s  ETA 15.0s\x1b[K");
    assert_true(fabs(trek_progress_eta(p, 0, 5) - 15) < 1e-6);
    clock_s = 14; /* four of evaluation */
    trek_progress_epoch(p, 0, NULL, 0);
    assert_true(fabs(trek_progress_eta(p, 1, 0) - 14) < 1e-6);
    expect("epoch 1/2  14.0s  ETA 14.0s\n");
    update_at(p, 1, 10, NAN, 15); /* of a tenth */
    assert_true(trek_progress_eta(p, 1, 0) < 11.5 && trek_progress_eta(p, 1, 0) > 4 + 2);
    update_at(p, 1, 11, NAN, 16); /* more than all */
    assert_null(strstr(expect("11/10"), "ETA"));
    trek_progress_free(&p);
    p = progress_at(4, 0, 1, 80); /* a run that was resumed: what was done before took none of this time */
    clock_s += 10;
    trek_progress_epoch(p, 1, NULL, 0);
    expect("epoch 2/4  10.0s  ETA 20.0s\n");
    trek_progress_free(&p);
}

/* How many batches there are is not known: neither are their share nor what is left, until an epoch is done. */
static void unknown_batches(void **state)
{
    trek_progress *p = progress(3, 0, 1);
    trek_progress_update(p, 0, 123, 0.25);
    expect("\repoch 1/3  batch 123  loss 0.25  ");
    expect_none("ETA");
    trek_progress_epoch(p, 0, NULL, 0);
    expect("epoch 1/3  loss 0.25  ");
    expect("  ETA ");
    trek_progress_free(&p);
}

/* What the stream is, is asked for where the options do not say. */
static void the_stream_is_asked(void **state)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    const char *name = master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 ? ptsname(master) : NULL;
    FILE *terminal = name ? fopen(name, "w") : NULL;
    if (!terminal)
        skip();
    setenv("TERM", "xterm", 1);
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
    assert_non_null(strstr(seen, "  4/9  "));
    assert_null(strstr(seen, "5/9"));
    fclose(terminal);
    close(master);
}

/* --- bytes, where width, time and charset are given ------------------------------------------ */

/* What is printed from here on is compared. */
static size_t seen_before;

static void expect_bytes(const char *bytes)
{
    fflush(stream);
    assert_string_equal(text + seen_before, bytes);
    seen_before = text_size;
}

static void use_charset(const char *name)
{
    setenv("LC_ALL", name, 1);
    seen_before = 0;
}

static void bar_of_ascii(void **state)
{
    use_charset("C");
    trek_progress *p = progress_at(2, 8, 1, 81);
    update_at(p, 0, 1, 0.5, 1);
    expect_bytes("\repoch 1/2 [==>              ]   12%  1/8  loss 0.5  1 batches/s  1.0s  ETA 15.0s\x1b[K");
    trek_progress_free(&p);
    expect_bytes("\n");
}

static void bar_of_blocks(void **state)
{
    use_charset("C.UTF-8");
    trek_progress *p = trek_progress_new_with(&(trek_progress_opts){
        .epochs = 2, .batches = 8, .stream = stream, .terminal = 1, .width = 61, .batch_size = 64, .colour = 1 });
    clock_s = 0;
    trek_progress_set_clock(p, told_clock);
    update_at(p, 0, 1, 0.5, 1);
    expect_bytes("\r\x1b[1mepoch 1/2\x1b[0m |\x1b[36m██              \x1b[0m|   12%  1/8  \x1b[32mloss 0.5\x1b[0m  "
                 "\x1b[36mETA 15.0s\x1b[0m\x1b[K");
    clock_s = 8;
    trek_progress_epoch(p, 0, "Genauigkeit", 0.25);
    expect_bytes("\r\x1b[K\x1b[1mepoch 1/2\x1b[0m  loss \x1b[32m0.5\x1b[0m  Genauigkeit \x1b[32m0.25\x1b[0m  64 samples/s  8.0s  "
                 "ETA 15.0s\n");
    trek_progress_free(&p);
    expect_bytes("");
}

/* Whatever the width, it is kept to; what matters most stays longest. */
static void narrow_terminals(void **state)
{
    use_charset("C.UTF-8");
    trek_charset charset = trek_charset_new();
    assert_true(charset.utf8);
    for (int width = 1; width < 130; width++) {
        trek_progress *p = progress_at(20, 400, 1, width);
        trek_progress_rank ranks[3] = { { 0, 0.5, 1234, "computing" }, { 1, 0.25, 617, "waiting" }, { 2, 0.25, NAN, "lost" } };
        for (int k = 0; k < 2; k++) {
            assert_int_equal(trek_progress_ranks(p, ranks, k * 3), TREK_OK);
            fflush(stream);
            size_t from = text_size;
            update_at(p, 3, 184, 0.25, 10 + k);
            fflush(stream);
            const char *line = text + from + 1, *end = strstr(line, "\x1b[K");
            assert_non_null(end);
            int columns = trek_terminal_columns(&charset, line, (size_t)(end - line));
            assert_in_range(columns, 1, width > 1 ? width - 1 : 1);
            assert_true(width < 60 || strstr(line, "|"));
            assert_true(width < 23 || strstr(line, "loss 0.25"));
            assert_true(width < 11 || strstr(line, "epoch 4/20"));
            if (k)
                assert_in_range(trek_terminal_columns(&charset, end + 4, strlen(end + 4) - 3), 1, width > 1 ? width - 1 : 1);
        }
        trek_progress_free(&p);
    }
    trek_charset_free(&charset);
}

static void wide_characters(void **state)
{
    use_charset("C.UTF-8");
    trek_charset charset = trek_charset_new();
    const char *name = "精度 é e\xcc\x81";
    assert_int_equal(trek_terminal_columns(&charset, name, strlen(name)), 4 + 1 + 1 + 1 + 1);
    assert_int_equal(trek_terminal_fit(&charset, name, strlen(name), 3), 3); /* no half of a character */
    assert_int_equal(trek_terminal_columns(&charset, "\x1b[32m精\x1b[0m", 12), 2);
    assert_int_equal(trek_terminal_columns(&charset, "\xff\xfe", 2), 2); /* no characters */
    trek_charset_free(&charset);
    use_charset("C");
    charset = trek_charset_new();
    assert_false(charset.utf8);
    trek_charset_free(&charset);
    setenv("LC_ALL", "xx_YY.UTF-8", 1); /* not installed */
    charset = trek_charset_new();
    assert_true(charset.utf8);
    assert_int_equal(trek_terminal_columns(&charset, "精", 3), 2);
    trek_charset_free(&charset);
    use_charset("C");
    trek_progress *p = progress_at(1, 0, TREK_OFF, 80);
    trek_progress_epoch(p, 0, "a\x1b[2J\nb", 1); /* does nothing to a terminal */
    expect_bytes("epoch 1/1  a?[2J?b 1  0ms\n");
    trek_progress_free(&p);
}

/* --- ranks ------------------------------------------------------------------------------------ */

static void ranks_below(void **state)
{
    use_charset("C");
    trek_progress *p = progress_at(2, 0, 1, 80);
    trek_progress_rank ranks[64] = { { 0, 0.5, 1234, "computing" }, { 7, 0.25, 99.5, "waiting" }, { 8, NAN, NAN, NULL } };
    assert_int_equal(trek_progress_ranks(p, ranks, 3), TREK_OK);
    update_at(p, 0, 3, NAN, 2);
    expect_bytes("\repoch 1/2  batch 3  1.5 batches/s  2.0s\x1b[K\nranks  0 50% 1.23k/s  7 25% 99.5/s waiting  8\x1b[K");
    for (int k = 0; k < 64; k++)
        ranks[k] = (trek_progress_rank){ k, k < 32 ? 0.01 : 0.02, 100 + k, k == 5 ? "lost" : k < 9 ? "waiting" : "computing" };
    assert_int_equal(trek_progress_ranks(p, ranks, 64), TREK_OK);
    update_at(p, 0, 6, NAN, 4);
    expect_bytes("\r\x1b[1A" "epoch 1/2  batch 6  1.5 batches/s  4.0s\x1b[K\n"
                 "64 ranks  1% to 2%  100/s to 163/s (8.31k/s)  slowest 0  8 waiting  1 lost\x1b[K");
    assert_int_equal(trek_progress_ranks(p, NULL, 0), TREK_OK);
    update_at(p, 0, 9, NAN, 6);
    expect_bytes("\r\x1b[1A" "epoch 1/2  batch 9  1.5 batches/s  6.0s\x1b[K\x1b[J");
    assert_int_equal(trek_progress_ranks(p, ranks, 1), TREK_OK);
    update_at(p, 0, 12, NAN, 8);
    seen_before = text_size;
    trek_progress_epoch(p, 0, NULL, 0);
    expect_bytes("\r\x1b[1A\x1b[Jepoch 1/2  8.0s  ETA 8.0s\n");
    FAILS(trek_progress_ranks(p, NULL, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_progress_ranks(p, ranks, -1), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_progress_ranks(NULL, ranks, 1), TREK_OK);
    trek_progress_free(&p);
}

/* --- others that print -------------------------------------------------------------------------- */

static void print_to(trek_log_level level, const char *message, void *arg)
{
    fprintf(arg, "%s\n", message);
}

static void messages_go_above(void **state)
{
    use_charset("C");
    trek_log_set(TREK_LOG_LEVEL_WARNING, print_to, stream);
    trek_progress *p = progress_at(2, 0, 1, 80);
    update_at(p, 0, 3, NAN, 2);
    seen_before = text_size;
    trek_log_message(TREK_LOG_LEVEL_WARNING, "a rank is %s", "slow");
    expect_bytes("\r\x1b[Ka rank is slow\nepoch 1/2  batch 3  1.5 batches/s  2.0s\x1b[K");
    trek_progress_print(p, "%d of my own", 1);
    expect_bytes("\r\x1b[K1 of my own\nepoch 1/2  batch 3  1.5 batches/s  2.0s\x1b[K");
    trek_progress_free(&p);
    expect_bytes("\n");
    trek_log_message(TREK_LOG_LEVEL_WARNING, "later");
    expect_bytes("later\n");
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    p = progress_at(2, 0, TREK_OFF, 80);
    trek_progress_print(p, "plain");
    expect_bytes("plain\n");
    trek_progress_free(&p);
    trek_progress_print(NULL, "nothing");
    expect_bytes("");
}

static void process_0_prints(void **state)
{
    use_charset("C");
    setenv("TREK_RANK", "1", 1);
    setenv("TREK_WORLD_SIZE", "2", 1);
    setenv("TREK_ADDRESS", "127.0.0.1", 1);
    setenv("TREK_PORT", "1234", 1);
    trek_progress_opts opts = { .epochs = 1, .stream = stream, .terminal = 1 };
    trek_progress *p = trek_progress_new_with(&opts);
    trek_progress_update(p, 0, 1, 1);
    trek_progress_print(p, "text");
    trek_progress_epoch(p, 0, NULL, 0);
    trek_progress_free(&p);
    expect_bytes("");
    opts.all_processes = true;
    p = trek_progress_new_with(&opts);
    trek_progress_epoch(p, 0, NULL, 0);
    trek_progress_free(&p);
    expect("epoch 1/1  ");
    unsetenv("TREK_RANK");
    unsetenv("TREK_WORLD_SIZE");
    unsetenv("TREK_ADDRESS");
    unsetenv("TREK_PORT");
}

/* --- colours and widths ------------------------------------------------------------------------- */

static void colours(void **state)
{
    static const char *const names[] = { "NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR" };
    static const struct { const char *values[3]; bool terminal, file; } cases[] = {
        { { NULL, NULL, NULL }, true, false }, { { "", NULL, NULL }, true, false },   { { "1", NULL, NULL }, false, false },
        { { NULL, "1", NULL }, true, true },   { { NULL, NULL, "1" }, true, true },   { { "1", "1", "1" }, false, false },
        { { NULL, "0", NULL }, true, false },  { { NULL, NULL, "" }, true, false } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int n = 0; n < 3; n++)
            if (cases[k].values[n])
                setenv(names[n], cases[k].values[n], 1);
            else
                unsetenv(names[n]);
        assert_int_equal(trek_terminal_colours(true), cases[k].terminal);
        assert_int_equal(trek_terminal_colours(false), cases[k].file);
    }
    for (int n = 0; n < 3; n++)
        unsetenv(names[n]);
    assert_false(trek_terminal_rewrites(-1));
    setenv("COLUMNS", "123", 1);
    assert_int_equal(trek_terminal_width(-1), 123);
    setenv("COLUMNS", "x", 1);
    assert_int_equal(trek_terminal_width(-1), 80);
    unsetenv("COLUMNS");
}

/* A terminal's width is asked for each time; one that has become narrower has wrapped what stood there. TERM=dumb: lines. */
static void terminals_change(void **state)
{
    use_charset("C");
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    const char *name = master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 ? ptsname(master) : NULL;
    FILE *terminal = name ? fopen(name, "w") : NULL;
    if (!terminal)
        skip();
    struct winsize size = { .ws_col = 60, .ws_row = 24 };
    char seen[1024];
    static const char *const want[] = { "\repoch 1/1 [=>          ]   10%  1/10  1 batches/s  ETA 9.0s\x1b[K",
                                        "\r\x1b[1A\x1b[Jepoch 1/1 [==>        ]   20%  ETA 8.0s\x1b[K" };
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    trek_progress *p = trek_progress_new_with(&(trek_progress_opts){ .epochs = 1, .batches = 10, .stream = terminal });
    clock_s = 0;
    trek_progress_set_clock(p, told_clock);
    for (int k = 0; k < 2; k++) {
        ioctl(master, TIOCSWINSZ, &size);
        update_at(p, 0, k + 1, NAN, k + 1);
        ssize_t got = read(master, seen, sizeof seen - 1);
        assert_true(got > 0);
        seen[got] = '\0';
        assert_string_equal(seen, want[k]);
        size.ws_col = 40;
    }
    trek_progress_free(&p);
    (void)!read(master, seen, sizeof seen);
    setenv("TERM", "dumb", 1);
    p = trek_progress_new_with(&(trek_progress_opts){ .epochs = 1, .batches = 10, .stream = terminal });
    trek_progress_update(p, 0, 1, 1);
    assert_true(read(master, seen, sizeof seen) < 0);
    trek_progress_free(&p);
    unsetenv("TERM");
    unsetenv("NO_COLOR");
    fclose(terminal);
    close(master);
}

static void speeds(void **state)
{
    static const struct { double speed; const char *text; } cases[] = {
        { 0, "0" }, { 0.123456, "0.123" }, { 9.5, "9.5" }, { 999.4, "999" }, { 999.6, "1k" }, { 12345, "12.3k" },
            { 1.3e6, "1.3M" },
        { (double)NAN, "?" }, { 2e9, "2G" } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char number[40];
        assert_string_equal(trek_speed_text(cases[k].speed, number), cases[k].text);
    }
}

/* --- runs ------------------------------------------------------------------------------------------ */

static void metrics_of_runs(void **state)
{
    use_charset("C");
    trek_progress *p = progress_at(3, 0, TREK_OFF, 80);
    const trek_epoch_scalar scalars[2] = { { .name = "accuracy", .value = 0.75 }, { .name = "confusion", .values = (void *)p } };
    const trek_rank_metrics ranks[2] = { { .share = 0.5, .samples_per_s = 10 }, { .share = 0.5 } };
    trek_epoch_metrics m = { .epoch = 0, .loss = 0.5, .evaluation_loss = 0.25, .seconds = 2, .evaluation_s = 1, .ranks = 2,
                             .samples_per_s = 1200, .per_rank = ranks, .n_scalars = 2, .scalars = scalars };
    clock_s = 3;
    assert_int_equal(trek_progress_metrics(&m, p), TREK_OK);
    expect_bytes("epoch 1/3  loss 0.5  evaluation_loss 0.25  accuracy 0.75  1.2k samples/s  3.0s  ETA 6.0s\n");
    trek_progress_free(&p);
    p = progress_at(3, 0, 1, 80);
    assert_int_equal(trek_progress_metrics(&m, p), TREK_OK);
    update_at(p, 1, 1, NAN, 4);
    expect("\nranks  0 50% 10/s  1 50%\x1b[K");
    trek_progress_free(&p);
    FAILS(trek_progress_metrics(NULL, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_progress_follow(NULL, NULL), TREK_ERR_ARGUMENT, "");
}

/* --- what is not given ------------------------------------------------------------------------ */

static void stderr_is_the_default(void **state)
{
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
    static const struct { int64_t epochs, batches; } wrong[] = { { 0, 5 }, { -1, 5 }, { INT64_MIN, 0 }, { 1, -1 } };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_null(trek_progress_new(wrong[k].epochs, wrong[k].batches));
        assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
        assert_int_equal(strncmp(trek_error(), "progress: ", 10), 0);
        trek_error_clear();
    }
    REFUSED(trek_progress_new_with(NULL), TREK_ERR_ARGUMENT, "");
    trek_progress_update(NULL, 0, 0, 0);
    trek_progress_epoch(NULL, 0, NULL, 0);
    trek_progress_free(NULL);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Without memory for a line it is left out; without any there is no progress. */
static void no_memory(void **state)
{
    assert_int_equal(test_allocator_use(), TREK_OK);
    test_memory.fail_count = 2; /* it is asked twice */
    test_allocator_restart(1);
    REFUSED(trek_progress_new(1, 1), TREK_ERR_MEMORY, "");
    test_allocator_restart(0);
    trek_progress *p = progress(2, 1, TREK_OFF);
    test_allocator_restart(1);
    trek_progress_epoch(p, 0, NULL, 0);
    trek_error_clear();
    test_allocator_restart(0);
    trek_progress_epoch(p, 1, NULL, 0);
    trek_progress_free(&p);
    assert_int_equal(test_allocator_blocks(), 0);
    expect_none("epoch 1/2");
    expect("epoch 2/2  ");
    trek_allocator_set(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_stream, close_stream)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(durations), TEST(one_line_an_epoch), TEST(losses_that_are_no_numbers), TEST(epochs_left_and_empty),
        TEST(a_line_is_rewritten), TEST(epochs_on_a_terminal), TEST(time_that_is_left), TEST(unknown_batches),
        TEST(the_stream_is_asked), TEST(stderr_is_the_default), TEST(bad_calls), TEST(no_memory), TEST(bar_of_ascii),
        TEST(bar_of_blocks), TEST(narrow_terminals), TEST(wide_characters), TEST(ranks_below), TEST(messages_go_above),
        TEST(process_0_prints), TEST(colours), TEST(terminals_change), TEST(speeds), TEST(metrics_of_runs),
    };
    return cmocka_run_group_tests_name("monitor", tests, NULL, NULL);
}
