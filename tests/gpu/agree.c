/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ways of attention (own kernels, wgmma, cuDNN) agree at the size of GPT-2 124M with batches of 64 x 1024: results
 * and gradients of attention, and losses of training steps, eager and captured. Each way runs in a process of its own, since
 * TREK_CUDA_ATTENTION is read once in a process; this one compares what they have found.
 *   gpu_agree [--device cuda:0] [--scale N] [--limit SECONDS] [attention] [gpt2]
 * --scale divides the sizes, to run it on the fake device; --limit: for each way. Prints a line for each check, "ok" or
 * "FAILED:", and counts as cmocka does. The status is 77 where there is no device. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nn/module_internal.h"
#include "tests/gpu/agree.h"

/* Attention: the norm of the difference to the other's result. Losses: relative. Losses of kept logits are of 16 bits. */
static const double most_attention = 1e-2, most_loss = 2e-3, most_kept = 1e-2;
static int passed, failed, skipped;

typedef struct agree_options {
    char **arguments; /* as they were given */
    const char *device;
    int limit; /* seconds for each way */
    agree_sizes sizes;
} agree_options;

static void check(bool fine, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void check(bool fine, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%s", fine ? "ok      " : "FAILED: ");
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    va_end(list);
    *(fine ? &passed : &failed) += 1;
}

static void skip(const char *what, const char *reason)
{
    printf("skipped %s: %s\n", what, reason);
    skipped++;
}

/* --- a process for each way ------------------------------------------------------------------------ */

typedef struct agree_found {
    int file; /* memory that the process shares */
    agree_result *result;
    uint16_t *y, *gradient;
    bool ended; /* by itself, with status 0 */
} agree_found;

/* Maps what lies in the file, which is made where there is none (file < 0). False and errno. */
static bool share(const agree_sizes *sizes, agree_found *found)
{
    size_t head = (sizeof(agree_result) + 4095) / 4096 * 4096, bytes = 2 * (size_t)agree_elements(sizes);
    if (found->file < 0) {
        found->file = memfd_create("gpu_agree", 0);
        if (found->file < 0 || ftruncate(found->file, (off_t)(head + 4 * bytes)) != 0)
            return false;
    }
    char *memory = mmap(NULL, head + 4 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, found->file, 0);
    if (memory == MAP_FAILED)
        return false;
    found->result = (agree_result *)memory;
    found->y = (uint16_t *)(memory + head);
    found->gradient = found->y + bytes / 2;
    return true;
}

/* Waits for a process for so many seconds, then ends it; what became of it. */
static bool wait_for(pid_t child, int limit, char *text, size_t size)
{
    int status = 0;
    const struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };
    for (int64_t turn = 0, turns = (int64_t)limit * 50; turn < turns + 250; turn++) {
        if (waitpid(child, &status, WNOHANG) == child) {
            if (WIFSIGNALED(status))
                snprintf(text, size, "its process %s by signal %d", turn < turns ? "died" : "was stopped at its limit",
                         WTERMSIG(status));
            else if (WEXITSTATUS(status))
                snprintf(text, size, "its process ended with status %d", WEXITSTATUS(status));
            return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        if (turn == turns)
            kill(child, SIGKILL);
        nanosleep(&pause, NULL);
    }
    snprintf(text, size, "its process does not end after %d seconds", limit);
    return false;
}

/* This program again, for one way: with the same arguments, and the file that it writes to. */
static void begin_way(agree_way way, char **arguments, int file)
{
    char text[16];
    snprintf(text, sizeof text, "%d", file);
    setenv("TREK_CUDA_ATTENTION", agree_way_names[way], 1);
    setenv("GPU_AGREE_FILE", text, 1);
    execv("/proc/self/exe", arguments);
    _exit(126);
}

static void run_way(agree_way way, const agree_options *options, agree_found *found)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        begin_way(way, options->arguments, found->file);
    char end[160] = "no process could be started";
    found->ended = child > 0 && wait_for(child, options->limit, end, sizeof end);
    if (!found->ended && !found->result->error[0])
        snprintf(found->result->error, sizeof found->result->error, "%s", end);
}

/* The process of one way. */
static int work_for(const char *file, const agree_options *options)
{
    agree_found found = { .file = atoi(file) };
    const char *name = getenv("TREK_CUDA_ATTENTION");
    trek_device device;
    int way = 0;
    while (way < AGREE_WAYS - 1 && strcmp(name ? name : "", agree_way_names[way]) != 0)
        way++;
    if (!share(&options->sizes, &found))
        return 125;
    if (trek_device_parse(options->device, &device) == TREK_OK)
        agree_run((agree_way)way, &options->sizes, device, found.result, found.y, found.gradient);
    if (trek_error_status() != TREK_OK)
        snprintf(found.result->error, sizeof found.result->error, "%s", trek_error());
    return 0;
}

/* --- attention --------------------------------------------------------------------------------------- */

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* The norm of a - b over that of b, of `count` rows of `width` values that begin `stride` apart. */
static double distance(const uint16_t *a, const uint16_t *b, int64_t count, int64_t width, int64_t stride)
{
    double difference = 0, size = 0;
    for (int64_t row = 0; row < count; row++)
        for (int64_t k = row * stride; k < row * stride + width; k++) {
            double x = from_bf16(a[k]), y = from_bf16(b[k]);
            difference += (x - y) * (x - y);
            size += y * y;
        }
    double value = sqrt(difference / size);
    return isfinite(value) ? value : INFINITY;
}

static bool all_below(const double *values, double most)
{
    bool below = true;
    for (int part = 0; part < 4; part++)
        below = below && values[part] < most;
    return below;
}

static void compare_attention(agree_way way, const agree_sizes *s, const agree_found *found, const agree_found *own)
{
    const char *name = agree_way_names[way];
    const agree_result *r = found->result;
    char size[80];
    snprintf(size, sizeof size, "%lld x %lld x %lld x %lld", (long long)s->batch, (long long)s->heads, (long long)s->length,
             (long long)s->depth);
    check(r->attention_ran, "attention by %s, causal bf16, %s%s%s", name, size, r->attention_ran ? "" : ": ", r->attention_error);
    if (!r->attention_ran)
        return;
    check(r->same[0] && r->same[1], "attention by %s: two runs have the same bits (y: %s, dq dk dv: %s)", name,
          r->same[0] ? "yes" : "no", r->same[1] ? "yes" : "no");
    double d[4];
    memcpy(d, r->reference, sizeof d);
    if (way != AGREE_OWN) {
        if (!own->result->attention_ran)
            return;
        int64_t rows = s->batch * s->length, width = s->heads * s->depth;
        d[0] = distance(found->y, own->y, rows, width, width);
        for (int part = 0; part < 3; part++)
            d[part + 1] = distance(found->gradient + part * width, own->gradient + part * width, rows, width, 3 * width);
    }
    check(all_below(d, most_attention), "attention by %s: distance from %s y %.2e, dq %.2e, dk %.2e, dv %.2e, at most %.0e", name,
          way == AGREE_OWN ? "f32" : "own", d[0], d[1], d[2], d[3], most_attention);
}

/* --- the way that was asked for is the way that ran --------------------------------------------------- */

static void check_paths(agree_way way, const char *where, const agree_paths *paths)
{
    static const char *const named[AGREE_WAYS] = { "mma", "wgmma", "cudnn" };
    static const char *const whats[] = { "attention", "attention_backward" };
    for (int w = 0; w < 2; w++) {
        int64_t by_it = 0, by_others = 0;
        for (int k = 0; k < paths->count; k++)
            if (strcmp(paths->row[k].what, whats[w]) == 0)
                *(strcmp(paths->row[k].path, named[way]) == 0 ? &by_it : &by_others) += paths->row[k].calls;
        check(by_it > 0 && by_others == 0, "%s by %s: %lld calls of %s by %s, %lld by others", where, agree_way_names[way],
              (long long)by_it, whats[w], named[way], (long long)by_others);
    }
}

/* --- training ---------------------------------------------------------------------------------------- */

static void print_losses(const char *way, const char *mode, const agree_training *t)
{
    printf("loss    %s %s:", way, mode);
    for (int k = 0; k < AGREE_STEPS; k++)
        printf(" %.6f", t->loss[k]);
    printf("; parameters %016llx, %lld replayed, %.2f s\n", (unsigned long long)t->parameters, (long long)t->replays, t->seconds);
}

static double farthest(const agree_training *a, const agree_training *b)
{
    double most = 0;
    for (int k = 0; k < AGREE_STEPS; k++) {
        double far = fabs(a->loss[k] - b->loss[k]) / fabs(b->loss[k]);
        if (!(far <= most))
            most = isfinite(far) ? far : INFINITY;
    }
    return most;
}

/* A model that has learned nothing is as far from each word; the batch being the same each time, the loss falls. */
static void check_losses(const char *way, const char *mode, const agree_training *t, int64_t vocabulary)
{
    double first = t->loss[0], last = t->loss[AGREE_STEPS - 1], expected = log((double)vocabulary);
    check(fabs(first - expected) < 1 && last < first, "gpt2 by %s %s: the loss begins near %.2f at %.6f and falls to %.6f", way,
          mode,
          expected, first, last);
}

static void check_bits(const char *way, const agree_training *t, agree_mode eager, agree_mode captured)
{
    const agree_training *a = &t[eager], *b = &t[captured];
    if (a->error[0] || b->error[0])
        return;
    bool losses = memcmp(a->loss, b->loss, sizeof a->loss) == 0, parameters = a->parameters == b->parameters;
    check(losses && parameters, "gpt2 by %s: %s steps have the bits of %s ones (losses: %s, parameters: %s)", way,
          agree_mode_names[captured], agree_mode_names[eager], losses ? "yes" : "no", parameters ? "yes" : "no");
}

static void compare_training(agree_way way, const agree_sizes *s, const agree_result *r, const agree_result *own)
{
    const char *name = agree_way_names[way];
    const agree_training *t = r->training;
    for (int mode = 0; mode < AGREE_MODES; mode++) {
        const char *error = mode < r->trainings ? t[mode].error : "it was not begun, or did not end";
        if (error[0])
            check(false, "gpt2 by %s %s: %s", name, agree_mode_names[mode], error);
        else
            print_losses(name, agree_mode_names[mode], &t[mode]);
    }
    if (r->trainings < AGREE_MODES)
        return;
    for (int mode = 0; mode < AGREE_MODES; mode += AGREE_EAGER_KEPT)
        if (!t[mode].error[0])
            check_losses(name, agree_mode_names[mode], &t[mode], s->vocabulary);
    check_bits(name, t, AGREE_EAGER, AGREE_CAPTURED);
    check_bits(name, t, AGREE_EAGER_KEPT, AGREE_CAPTURED_KEPT);
    if (!t[AGREE_EAGER].error[0] && !t[AGREE_EAGER_KEPT].error[0]) {
        double far = farthest(&t[AGREE_EAGER_KEPT], &t[AGREE_EAGER]);
        check(far <= most_kept, "gpt2 by %s: losses of kept logits are within %.1e of linear_cross_entropy's, at most %.0e", name,
              far,
              most_kept);
    }
    const agree_training *base = &own->training[AGREE_EAGER];
    if (way != AGREE_OWN && own->trainings > 0 && !base->error[0] && !t[AGREE_EAGER].error[0]) {
        double far = farthest(&t[AGREE_EAGER], base);
        check(far <= most_loss, "gpt2 by %s: losses are within %.1e of own's, at most %.0e", name, far, most_loss);
    }
}

/* --- the program --------------------------------------------------------------------------------------- */

static int64_t larger(int64_t size, int64_t least) { return size > least ? size : least; }

static void set_sizes(agree_sizes *s, int64_t scale)
{
    s->batch = larger(64 / scale, 2);
    s->heads = larger(12 / scale, 2);
    s->length = larger(1024 / scale, 72); /* more than a tile */
    s->depth = 64;
    s->gpt2_heads = larger(12 / scale, 1);
    s->context = larger(1024 / scale, 16);
    s->vocabulary = larger(50304 / scale, 128);
    s->layers = (int)larger(12 / scale, 2);
    if (!s->attention && !s->gpt2)
        s->attention = s->gpt2 = true;
}

/* False: the arguments are wrong. */
static bool read_arguments(int argc, char **argv, agree_options *o)
{
    const char *named = getenv("TREK_TEST_DEVICE");
    int64_t scale = getenv("TREK_TEST_SHORT") || getenv("TREK_GPU_REHEARSE") ? 256 : 1;
    *o = (agree_options){ .arguments = argv, .device = named && *named ? named : "cuda:0", .limit = scale > 1 ? 600 : 60 };
    for (int k = 1; k < argc; k++) {
        bool valued = k + 1 < argc;
        if (!strcmp(argv[k], "--device") && valued)
            o->device = argv[++k];
        else if (!strcmp(argv[k], "--scale") && valued)
            scale = atoll(argv[++k]);
        else if (!strcmp(argv[k], "--limit") && valued)
            o->limit = atoi(argv[++k]);
        else if (!strcmp(argv[k], "attention"))
            o->sizes.attention = true;
        else if (!strcmp(argv[k], "gpt2"))
            o->sizes.gpt2 = true;
        else
            return false;
    }
    if (scale < 1 || o->limit < 1)
        return false;
    set_sizes(&o->sizes, scale);
    return true;
}

/* False where there is no device. */
static bool try_way(agree_way way, const agree_options *options, agree_found *found, const agree_found *own)
{
    agree_result *r = found->result;
    memset(r, 0, sizeof *r);
    run_way(way, options, found);
    if (r->skipped[0]) {
        if (way == AGREE_OWN)
            printf("%s\n", r->skipped);
        else
            skip(agree_way_names[way], r->skipped);
        return way != AGREE_OWN;
    }
    check(found->ended && !r->error[0], "%s: its process ran%s%s", agree_way_names[way], r->error[0] ? ": " : "", r->error);
    if (options->sizes.attention) {
        check_paths(way, "attention", &r->attention);
        compare_attention(way, &options->sizes, found, own);
    }
    if (options->sizes.gpt2) {
        check_paths(way, "gpt2", &r->gpt2);
        compare_training(way, &options->sizes, r, own->result);
    }
    printf("%s", r->report);
    return true;
}

int main(int argc, char **argv)
{
    agree_options options;
    if (!read_arguments(argc, argv, &options)) {
        fprintf(stderr, "usage: gpu_agree [--device cuda:0] [--scale N] [--limit SECONDS] [attention] [gpt2]\n");
        return 2;
    }
    if (getenv("GPU_AGREE_FILE"))
        return work_for(getenv("GPU_AGREE_FILE"), &options);
    agree_found found[2] = { { .file = -1 }, { .file = -1 } }; /* own's, and the present one's */
    for (int k = 0; k < 2; k++)
        if (!share(&options.sizes, &found[k])) {
            fprintf(stderr, "no memory to share: %s\n", strerror(errno));
            return 1;
        }
    for (int way = 0; way < AGREE_WAYS; way++)
        if (!try_way((agree_way)way, &options, &found[way != AGREE_OWN], &found[0]))
            return 77;
    if (skipped)
        printf("%3d SKIPPED TEST(S)\n", skipped);
    if (failed)
        printf("%3d FAILED TEST(S)\n", failed);
    printf("[  PASSED  ] %d test(s).\n", passed);
    return failed != 0;
}
