/* SPDX-License-Identifier: Apache-2.0 */
/* trek-gpu-bench: times works on one device and prints a line of JSON for each
 * measure. gpu_bench.py runs it beside PyTorch.
 *   trek-gpu-bench [--device cuda:0] [--ms N] [--rounds N] [--scale N] NAME...  |  --list */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

trek_device gpu_device;
static double round_ms = 60;
static int rounds = 9;
static int64_t scale = 1;
static const char *present_work = "";

enum { MOST_ROUNDS = 99, MOST_CALLS = 20000 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

int64_t gpu_size(int64_t size, int64_t least)
{
    return size / scale > least ? size / scale : least;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Time of `calls` calls with the device at rest before and after; *host: until they have returned. */
static double span_us(gpu_fn fn, void *state, int calls, double *host)
{
    trek_device_sync(gpu_device);
    double start = now_us();
    for (int k = 0; k < calls; k++)
        fn(state);
    *host = now_us() - start;
    trek_device_sync(gpu_device);
    return now_us() - start;
}

gpu_result gpu_time(gpu_fn fn, void *state)
{
    double whole[MOST_ROUNDS], hosts[MOST_ROUNDS], host;
    trek_memory_reset_peak(gpu_device); /* here, since what a recorded step uses counts only while it is recorded */
    for (int k = 0; k < 4; k++) /* plans, caches, and steps that are recorded */
        span_us(fn, state, 1, &host);
    double one = span_us(fn, state, 1, &host);
    double wanted = round_ms * 1e3 / (one > 0.5 ? one : 0.5);
    int calls = wanted < 1 ? 1 : wanted > MOST_CALLS ? MOST_CALLS : (int)wanted, n = rounds;
    if (one * rounds > 20e6) /* long works: fewer rounds */
        n = 3;
    for (int r = 0; r < n; r++) {
        whole[r] = span_us(fn, state, calls, &hosts[r]) / calls;
        hosts[r] /= calls;
    }
    gpu_result result = { .us = median(whole, n), .host_us = median(hosts, n) };
    result.peak_mib = (double)trek_memory_usage(gpu_device).allocated_peak / 0x1p20;
    return result;
}

gpu_result gpu_time_host(gpu_fn fn, void (*rest)(void), void *state)
{
    enum { BURSTS = 9 };
    double hosts[MOST_ROUNDS];
    for (int r = -1; r < rounds; r++) { /* round -1 warms up */
        double bursts[BURSTS];
        for (int k = 0; k < BURSTS; k++) {
            double start = now_us();
            fn(state);
            bursts[k] = now_us() - start;
            if (rest)
                rest();
            else
                trek_device_sync(gpu_device);
        }
        if (r >= 0)
            hosts[r] = median(bursts, BURSTS);
    }
    double host = median(hosts, rounds);
    return (gpu_result){ .us = host, .host_us = host };
}

const char *gpu_work_name(void) { return present_work; }

static void print_text(const char *text)
{
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar((unsigned char)*text < 32 ? ' ' : *text);
}

void gpu_report_failure(const char *measure)
{
    printf("{\"work\": \"%s\", \"measure\": \"%s\", \"error\": \"", present_work, measure);
    print_text(trek_error_status() != TREK_OK ? trek_error() : "not built");
    printf("\"}\n");
    fflush(stdout);
    trek_error_clear();
}

void gpu_report(const char *measure, gpu_result result, double per, double bytes, double flop)
{
    if (trek_error_status() == TREK_OK && !isfinite(result.loss))
        trek_fail(TREK_ERR_STATE, "the loss after %d steps is %g", GPU_LOSS_STEPS, result.loss);
    if (trek_error_status() != TREK_OK) {
        gpu_report_failure(measure);
        return;
    }
    printf("{\"work\": \"%s\", \"measure\": \"%s\", \"us\": %.4f, \"host_us\": %.4f, \"peak_mib\": %.1f", present_work, measure,
           result.us / per, result.host_us / per, result.peak_mib);
    if (bytes > 0)
        printf(", \"gb_s\": %.2f", bytes / result.us * 1e-3);
    if (flop > 0)
        printf(", \"tflops\": %.2f", flop / result.us * 1e-6);
    if (result.tokens > 0)
        printf(", \"tokens_s\": %.0f", result.tokens / result.us * 1e6);
    if (result.loss != 0)
        printf(", \"loss\": %.6f", result.loss);
    printf("}\n");
    fflush(stdout);
}

/* Which ways served the calls of a work: lines for people, and one of JSON. */
static void print_paths(void)
{
    enum { MOST = 64 };
    trek_device_path rows[MOST];
    char *report = trek_device_report(gpu_device);
    int count = trek_device_paths(gpu_device, rows, MOST), shown = 0;
    if (report && report[0]) {
        printf("%s{\"work\": \"%s\", \"paths\": [", report, present_work);
        for (int k = 0; k < count && k < MOST; k++)
            if (rows[k].calls || rows[k].refused)
                printf("%s{\"what\": \"%s\", \"path\": \"%s\", \"calls\": %lld, \"refused\": %lld}", shown++ ? ", " : "",
                       rows[k].what,
                       rows[k].path, (long long)rows[k].calls, (long long)rows[k].refused);
        printf("], \"report\": [");
        for (char *line = strtok(report, "\n"), *first = line; line; line = strtok(NULL, "\n")) {
            printf("%s\"", line == first ? "" : ", ");
            print_text(line);
            putchar('"');
        }
        printf("]}\n");
        fflush(stdout);
    }
    trek_string_free(&report);
    trek_device_paths_reset(gpu_device);
}

static const gpu_work *const lists[] = { gpu_works_ops, gpu_works_training };

static bool run_named(const char *name, bool list)
{
    bool found = false;
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (const gpu_work *w = lists[l]; w->name; w++) {
            if (list)
                printf("%s\n", w->name);
            if (list || (strcmp(name, w->name) != 0 && strcmp(name, "all") != 0))
                continue;
            found = true;
            present_work = w->name;
            trek_seed(1);
            w->run();
            if (trek_error_status() != TREK_OK)
                gpu_report_failure("end");
            print_paths();
            trek_memory_release_cached(gpu_device);
        }
    return found || list;
}

int main(int argc, char **argv)
{
    int missing = 0;
    trek_device_parse("cuda:0", &gpu_device);
    for (int k = 1; k < argc; k++) {
        const char *option = argv[k];
        bool valued = k + 1 < argc;
        if (!strcmp(option, "--list"))
            run_named("", true);
        else if (!strcmp(option, "--device") && valued)
            missing += trek_device_parse(argv[++k], &gpu_device) != TREK_OK;
        else if (!strcmp(option, "--ms") && valued)
            round_ms = atof(argv[++k]);
        else if (!strcmp(option, "--rounds") && valued)
            rounds = atoi(argv[++k]) > MOST_ROUNDS ? MOST_ROUNDS : atoi(argv[k]);
        else if (!strcmp(option, "--scale") && valued)
            scale = atoll(argv[++k]);
        else if (!run_named(option, false))
            missing += fprintf(stderr, "there is no work \"%s\"\n", option) > 0;
        if (rounds < 1 || scale < 1)
            return 2;
    }
    if (missing)
        fprintf(stderr, "%s\n", trek_error());
    return missing != 0;
}
