/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmarks of trek, as a program of its own: never a timed test.
 *
 *   trek-bench [--repetitions N] [--ms N] NAME...   one line of JSON for each work
 *   trek-bench --serve NAME    sets the work up, prints its check values, then one
 *                              line for each line "REPETITIONS MS" on its input
 *   trek-bench [--ms N] --profile NAME   where the work's time goes: ops, and modules, of about N ms
 *   trek-bench --list
 *
 * run.py runs it interleaved with peer.py, which does the same in PyTorch. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CHECKS 64
#define MAX_NOTES 16
#define MAX_REPETITIONS 1000

static double checks[MAX_CHECKS];
static int n_checks, n_notes;
static struct { const char *name; double value; } notes[MAX_NOTES];

typedef struct measurement {
    int64_t times;                           /* of the work in one repetition */
    int repetitions;
    double ns[MAX_REPETITIONS], stream[MAX_REPETITIONS], near[MAX_REPETITIONS];
} measurement;

static measurement measured;
static int64_t left_out;

void bench_check(double value)
{
    if (n_checks < MAX_CHECKS)
        checks[n_checks++] = value;
}

void bench_note(const char *name, double value)
{
    int k = 0;
    while (k < n_notes && strcmp(notes[k].name, name) != 0)
        k++;
    if (k == MAX_NOTES)
        return;
    notes[k].name = name;
    notes[k].value = value;
    n_notes = k == n_notes ? k + 1 : n_notes;
}

void bench_leave_out(int64_t ns)
{
    left_out += ns;
}

static const bench_work *const lists[] = { bench_works_small, bench_works_training, bench_works_memory,
                                           bench_works_recurrent, bench_works_start };

static const bench_work *find_work(const char *name)
{
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        for (const bench_work *work = lists[k]; work->name; work++)
            if (strcmp(work->name, name) == 0)
                return work;
    return NULL;
}

static void list_works(void)
{
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        for (const bench_work *work = lists[k]; work->name; work++)
            printf("%-16s %s\n", work->name, work->what);
}

/* Warms up for a fifth of a second at least, and finds how many times fill `ms`. */
static int64_t calibrate(const bench_work *work, void *state, double ms)
{
    int64_t times = 1;
    int64_t begin = bench_now_ns(), last = begin, took = 0;
    for (;;) {
        work->run(state, times);
        int64_t now = bench_now_ns();
        took = now - last;
        last = now;
        if (trek_error_status() != TREK_OK || (now - begin > 200000000 && took > 1000000))
            break;
        if (took < 10000000)
            times *= 2;
    }
    double wanted = ms * 1e6 / ((double)(took > 0 ? took : 1) / (double)times);
    return wanted > 1 ? (int64_t)wanted : 1;
}

static void measure(const bench_work *work, void *state, int repetitions, double ms)
{
    measured.repetitions = repetitions < MAX_REPETITIONS ? repetitions : MAX_REPETITIONS;
    measured.times = calibrate(work, state, ms);
    int64_t near = work->near ? (int64_t)(work->bytes / 8) : 0;
    for (int k = 0; k < measured.repetitions; k++) {
        if (work->bytes > 0)
            measured.stream[k] = bench_stream(BENCH_STREAM, 2);
        if (near > 0)
            measured.near[k] = bench_stream(near, (int)(ms * 2e6 / (double)near) + 1); /* about ms, at 24 GB/s */
        left_out = 0;
        int64_t begin = bench_now_ns();
        work->run(state, measured.times);
        measured.ns[k] = (double)(bench_now_ns() - begin - left_out) / (double)measured.times / (work->per > 0 ? work->per : 1);
    }
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(const double *values, int count)
{
    static double sorted[MAX_REPETITIONS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static void print_list(const char *name, const double *values, int count)
{
    printf(", \"%s\": [", name);
    for (int k = 0; k < count; k++)
        printf("%s%.9g", k ? ", " : "", values[k]);
    printf("]");
}

static void print_checks(const bench_work *work)
{
    printf("{\"work\": \"%s\", \"side\": \"trek\", \"version\": \"%s\"", work->name, trek_version());
    print_list("checks", checks, n_checks);
    printf("}\n");
    fflush(stdout);
}

static void print_measured(const bench_work *work)
{
    printf("{\"work\": \"%s\", \"side\": \"trek\", \"median_ns\": %.9g, \"times\": %lld", work->name,
           median(measured.ns, measured.repetitions), (long long)measured.times);
    print_list("ns", measured.ns, measured.repetitions);
    if (work->bytes > 0) {
        printf(", \"bytes\": %.0f", work->bytes);
        print_list("stream_gb_s", measured.stream, measured.repetitions);
    }
    if (work->near)
        print_list("near_stream_gb_s", measured.near, measured.repetitions);
    for (int k = 0; k < n_notes; k++)
        printf(", \"%s\": %.9g", notes[k].name, notes[k].value);
    printf("}\n");
    fflush(stdout);
}

static bool failed(const char *name)
{
    if (trek_error_status() == TREK_OK)
        return false;
    fprintf(stderr, "%s: %s: %s\n", name, trek_status_name(trek_error_status()), trek_error());
    return true;
}

static void print_profile(trek_timeline *timeline, trek_timeline_group group)
{
    char *text = trek_timeline_summary(timeline, &(trek_timeline_summary_opts){ .group = group, .peak = true });
    printf("%s\n", text ? text : "");
    trek_string_free(&text);
}

/* The profile of a work that runs for about `ms`. */
static int profile_work(const char *name, double ms)
{
    const bench_work *work = find_work(name);
    void *state = work ? work->open(work) : NULL;
    if (failed(name) || !state)
        return 1;
    int64_t times = calibrate(work, state, ms);
    trek_timeline *timeline = trek_timeline_new(&(trek_timeline_opts){ .ops = true });
    trek_timeline_attach(timeline);
    int64_t begin = bench_now_ns();
    work->run(state, times);
    double took = (double)(bench_now_ns() - begin) / 1e6;
    trek_timeline_detach(timeline);
    printf("%s: %s; %lld times in %.1f ms\n\n", name, work->what, (long long)times, took);
    print_profile(timeline, TREK_TIMELINE_GROUP_OP);
    print_profile(timeline, TREK_TIMELINE_GROUP_MODULE);
    print_profile(timeline, TREK_TIMELINE_GROUP_SHAPES);
    trek_timeline_free(&timeline);
    work->close(state);
    return failed(name);
}

/* Opens the work, prints its check values, measures it as often as `next` says; 0 if all went well. */
static int run_work(const char *name, bool serve, int repetitions, double ms)
{
    const bench_work *work = find_work(name);
    if (!work) {
        fprintf(stderr, "there is no work named %s; trek-bench --list names them\n", name);
        return 2;
    }
    n_checks = n_notes = 0;
    void *state = work->open(work);
    if (failed(name) || !state)
        return 1;
    print_checks(work);
    char line[128];
    bool go = !serve || (fgets(line, sizeof line, stdin) && sscanf(line, "%d %lf", &repetitions, &ms) == 2);
    while (go && repetitions > 0) {
        measure(work, state, repetitions, ms);
        if (failed(name))
            break;
        print_measured(work);
        go = serve && fgets(line, sizeof line, stdin) && sscanf(line, "%d %lf", &repetitions, &ms) == 2;
    }
    work->close(state);
    return failed(name);
}

int main(int argc, char **argv)
{
    bool serve = false, profile = false;
    int repetitions = 11, status = 0, k = 1;
    double ms = 50;
    for (; k < argc && argv[k][0] == '-'; k++) {
        if (strcmp(argv[k], "--serve") == 0) {
            serve = true;
        } else if (strcmp(argv[k], "--profile") == 0) {
            profile = true;
        } else if (strcmp(argv[k], "--list") == 0) {
            list_works();
            return 0;
        } else if (strcmp(argv[k], "--first-step") == 0) {
            return bench_first_step();
        } else if (strcmp(argv[k], "--repetitions") == 0 && k + 1 < argc) {
            repetitions = atoi(argv[++k]);
        } else if (strcmp(argv[k], "--ms") == 0 && k + 1 < argc) {
            ms = strtod(argv[++k], NULL);
        } else {
            break;
        }
    }
    if (k >= argc || argv[k][0] == '-' || repetitions < 1 || ms <= 0 || (serve && argc - k != 1)) {
        fprintf(stderr, "usage: %s [--repetitions N] [--ms N] NAME... | --serve NAME | [--ms N] --profile NAME... | --list\n",
                argv[0]);
        return 2;
    }
    for (; k < argc && status == 0; k++)
        status = profile ? profile_work(argv[k], ms) : run_work(argv[k], serve, repetitions, ms);
    return status;
}
