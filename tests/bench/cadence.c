/* SPDX-License-Identifier: Apache-2.0 */
/* Unequal ranks: what two ranks of one process reach, by windows or by balanced
 * shares, of what the same two reach as independent programs running at once. Every
 * measurement is a process of its own (this program again), on two cores, one thread
 * a rank; they take turns, and medians of the ratios are printed. A rank is slowed by a
 * module at its graph's end that sleeps so long per sample (--busy: computes), which
 * nothing in the library can read. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "trek.h"
#include "tests/support/lenet.h"

enum { MOST_REPEATS = 64, MOST_WINDOWS = 64, WARM_WINDOWS = 10, WARM_STEPS = 130 };
enum { TOKENS = 16, WORDS = 64, WIDTH = 128, BLOCKS = 3 };

typedef enum way { SOLO, SOLO_WIDE, OFF, BALANCER, WINDOWS, SHIFT, PLAIN } way;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, trek_error_status() != TREK_OK ? trek_error() : strerror(errno));
    exit(1);
}

/* --- slow ranks ------------------------------------------------------------------------- */

static _Atomic int64_t sample_ns[2]; /* of each rank; changed in mid-run */
static bool busy;

typedef struct slow {
    trek_module base;
    int rank;
    int64_t owed; /* a sleep ends a little late: the next one is shorter */
} slow;

static trek_var *slow_forward(trek_module *self, trek_var *x)
{
    slow *m = (slow *)self;
    int64_t start = now_ns();
    m->owed += trek_var_size(x, 0) * atomic_load(&sample_ns[m->rank]);
    if (m->owed <= 0)
        return x;
    int64_t end = start + m->owed;
    struct timespec until = { end / 1000000000, end % 1000000000 };
    while (!busy && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    while (now_ns() < end)
        ;
    m->owed -= now_ns() - start;
    return x;
}

static const trek_module_class slow_class = { .name = "slow", .size = sizeof(slow), .forward = slow_forward };

static trek_module *slow_new(trek_device device)
{
    slow *m = (slow *)trek_module_new(&slow_class);
    if (m)
        m->rank = device.index;
    return (trek_module *)m;
}

/* --- works ------------------------------------------------------------------------------ */

typedef struct work {
    const char *name, *what, *field;
    int64_t batch, samples; /* of a window's batch, half of one that is divided; of the set */
    double seconds;
    trek_dataset *(*data)(int64_t samples);
    trek_graph *(*build)(trek_device device, void *arg);
} work;

/* Drawn once: drawing them takes longer than training on them. */
static trek_dataset *digits(int64_t samples)
{
    trek_dataset *drawn = trek_dataset_digits(samples, 1);
    int64_t *indices = malloc((size_t)samples * sizeof *indices);
    trek_tensor *tensors[2];
    if (!drawn || !indices || trek_dataset_field_count(drawn) != 2)
        die("digits");
    for (int64_t k = 0; k < samples; k++)
        indices[k] = k;
    if (trek_dataset_get(drawn, indices, samples, tensors) != TREK_OK)
        die("digits");
    const char *names[] = { trek_dataset_field_name(drawn, 0), trek_dataset_field_name(drawn, 1) };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 2);
    for (int k = 0; k < 2; k++)
        trek_tensor_release(tensors[k]);
    free(indices);
    trek_dataset_free(&drawn);
    return dataset;
}

static trek_graph *build_lenet(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = lenet(NULL, device);
    trek_flow_through(flow, slow_new(device));
    return trek_flow_build(flow);
}

/* Each token is the one before plus the one before that, and now and then a random one. */
static trek_dataset *tokens(int64_t samples)
{
    int64_t n = samples * TOKENS, *input = malloc((size_t)n * sizeof *input), *label = malloc((size_t)n * sizeof *label);
    if (!input || !label)
        die("tokens");
    uint32_t state = 1, before = 1, last = 2;
    for (int64_t k = 0; k < n; k++) {
        state = state * 1664525u + 1013904223u;
        uint32_t next = state >> 28 == 0 ? state >> 8 & (WORDS - 1) : (before + last) & (WORDS - 1);
        input[k] = last;
        label[k] = next;
        before = last;
        last = next;
    }
    const char *names[] = { "image", "label" };
    trek_tensor *tensors[] = { trek_tensor_from_data(input, trek_dims(samples, TOKENS), TREK_I64, trek_cpu(0)),
                               trek_tensor_from_data(label, trek_dims(samples, TOKENS), TREK_I64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    free(input);
    free(label);
    return dataset;
}

typedef struct block {
    trek_module base;
    trek_module *norm1, *attention, *norm2, *wide, *gelu, *narrow;
} block;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block *m = (block *)self;
    x = trek_add(x, trek_forward(m->attention, trek_forward(m->norm1, x)));
    trek_var *h = trek_forward(m->gelu, trek_forward(m->wide, trek_forward(m->norm2, x)));
    return trek_add(x, trek_forward(m->narrow, h));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block), .forward = block_forward };

static trek_module *block_new(trek_device device)
{
    trek_module *m = trek_module_new(&block_class);
    trek_multihead_attention_opts attention = { .embed_dim = WIDTH, .heads = 4, .causal = true, .device = device };
    trek_module_add(m, "norm1", offsetof(block, norm1), trek_nn_layer_norm(WIDTH, device));
    trek_module_add(m, "attention", offsetof(block, attention), trek_nn_multihead_attention_with(&attention));
    trek_module_add(m, "norm2", offsetof(block, norm2), trek_nn_layer_norm(WIDTH, device));
    trek_module_add(m, "wide", offsetof(block, wide), trek_nn_linear(WIDTH, 4 * WIDTH, device));
    trek_module_add(m, "gelu", offsetof(block, gelu), trek_nn_gelu());
    trek_module_add(m, "narrow", offsetof(block, narrow), trek_nn_linear(4 * WIDTH, WIDTH, device));
    return trek_module_check(m);
}

typedef struct embedding {
    trek_module base;
    trek_module *words;
    trek_var *places;
} embedding;

static trek_var *embedding_forward(trek_module *self, trek_var *x)
{
    embedding *m = (embedding *)self;
    return trek_add(trek_forward(m->words, x), m->places);
}

static const trek_module_class embedding_class = { .name = "embedding", .size = sizeof(embedding), .forward = embedding_forward };

static trek_graph *build_transformer(trek_device device, void *arg)
{
    (void)arg;
    trek_module *m = trek_module_new(&embedding_class);
    trek_module_add(m, "words", offsetof(embedding, words), trek_nn_embedding(WORDS, WIDTH, device));
    trek_module_param(m, "places", offsetof(embedding, places), trek_tensor_zeros(trek_dims(TOKENS, WIDTH), TREK_F32, device));
    trek_flow *flow = trek_flow_from(trek_module_check(m));
    for (int k = 0; k < BLOCKS; k++)
        trek_flow_through(flow, block_new(device));
    trek_flow_through(flow, trek_nn_layer_norm(WIDTH, device));
    trek_flow_through(flow, trek_nn_linear(WIDTH, WORDS, device));
    trek_flow_through(flow, slow_new(device));
    return trek_flow_build(flow);
}

static trek_graph *build_mlp(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(784, 256, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(256, 10, device));
    return trek_flow_build(flow);
}

static const work works[] = {
    { "lenet", "LeNet, 28 x 28 digits, 128 samples a batch", "image", 128, 24576, 2, digits, build_lenet },
    { "transformer", "transformer of 0.6 M parameters, 16 x 16 tokens a batch", "image", 16, 8192, 3, tokens,
      build_transformer },
    { "mlp", "MLP 784-256-10, 64 samples a batch", "image", 64, 8192, 1.5, digits, build_mlp },
    { "lenet-64", "LeNet, 64 samples a batch", "image", 64, 12288, 2, digits, build_lenet },
};
enum { N_WORKS = sizeof works / sizeof *works };

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    if (trek_var_ndim(output) == 3)
        output = trek_reshape(output, trek_dims(-1, WORDS));
    return trek_cross_entropy(output, trek_reshape(trek_batch_get(batch, "label"), trek_dims(-1)));
}

/* --- the measured process ------------------------------------------------------------------ */

typedef struct trainer {
    const work *work;
    way way;
    trek_loader *loader;
    trek_graph *graph;
    int64_t epoch, samples;
} trainer;

static void set_up(trainer *t)
{
    bool alone = t->way == SOLO || t->way == SOLO_WIDE || t->way == PLAIN, wide = !alone && t->way < WINDOWS;
    wide |= t->way == SOLO_WIDE;
    trek_loader_opts loading = { .batch_size = (wide ? 2 : 1) * t->work->batch, .shuffle = true, .drop_last = true };
    t->loader = trek_loader_new(t->work->data(t->work->samples), &loading);
    t->graph = t->work->build(trek_cpu(0), NULL);
    if (!t->loader || !t->graph)
        die("graph");
    trek_trainer_opts opts = { .build_replica = t->work->build, .ranks = alone ? 1 : 2,
                               .optimizer = trek_adam(&(trek_adam_opts){ .lr = 1e-3 }),
                               .balance = t->way == BALANCER ? 1 : TREK_OFF,
                               .max_anchor = t->way == WINDOWS || t->way == SHIFT ? 200 : TREK_OFF };
    trek_graph_set_loader(t->graph, t->loader, t->work->field);
    if (t->way != PLAIN)
        trek_graph_set_loss(t->graph, loss_of, NULL);
    trek_trainer_setup(t->graph, &opts);
    if (trek_graph_start(t->graph, t->epoch++) != TREK_OK)
        die("setting up");
}

/* One step; the samples of it. */
static int64_t step(trainer *t)
{
    trek_batch *batch = t->way == PLAIN ? trek_loader_next(t->loader) : trek_graph_next(t->graph);
    if (!batch && trek_graph_start(t->graph, t->epoch++) == TREK_OK)
        batch = t->way == PLAIN ? trek_loader_next(t->loader) : trek_graph_next(t->graph);
    if (!batch)
        die("loader");
    int64_t samples = trek_batch_size(batch);
    if (t->way == PLAIN) {
        trek_var *y = trek_graph_forward(t->graph, trek_batch_get(batch, t->work->field));
        trek_graph_backward(t->graph, y ? loss_of(t->graph, y, batch, NULL) : NULL);
    } else {
        trek_graph_train_batch(t->graph, batch);
    }
    if (trek_graph_step(t->graph) != TREK_OK)
        die("step");
    t->samples += samples;
    return samples;
}

/* Steps, each with its counts of batches and its throughput; they are printed. */
static void print_windows(trainer *t, int n)
{
    for (int k = 0; k < n; k++) {
        int64_t counts[2] = { 0, 0 }, start = now_ns();
        trek_trainer_counts(t->graph, counts, 2);
        int64_t samples = step(t);
        bool whole = samples == (counts[0] + counts[1]) * t->work->batch;
        double rate = (double)samples * 1e9 / (double)(now_ns() - start);
        printf("window %lld %lld %d %.9g\n", (long long)counts[0], (long long)counts[1], whole, rate);
    }
}

static bool told(void)
{
    struct pollfd fd = { .fd = 0, .events = POLLIN };
    return poll(&fd, 1, 0) > 0;
}

static void wait_for_start(void)
{
    char c;
    printf("ready\n");
    fflush(stdout);
    if (read(0, &c, 1) != 1)
        exit(1);
}

/* Samples in at least so many seconds, then goes on until the other has measured, too. */
static void measure(trainer *t, double seconds)
{
    wait_for_start();
    int64_t start = now_ns(), end = start, samples = 0, steps = 0;
    for (; (double)(end - start) < seconds * 1e9; end = now_ns(), steps++)
        samples += step(t);
    printf("result %lld %lld %lld\n", (long long)samples, (long long)(end - start), (long long)steps);
    fflush(stdout);
    while (!told())
        step(t);
}

/* --child WORK WAY SECONDS NS0 NS1 NS0' NS1' : slowed by so many ns a sample; in a shift then by those with ' */
static int child(char **argv)
{
    trainer t = { 0 };
    for (int k = 0; k < N_WORKS; k++)
        t.work = strcmp(argv[0], works[k].name) == 0 ? &works[k] : t.work;
    t.way = (way)atoi(argv[1]);
    for (int r = 0; r < 2; r++)
        atomic_store(&sample_ns[r], atoll(argv[3 + r]));
    trek_seed(1);
    set_up(&t);
    if (t.way == WINDOWS || t.way == SHIFT)
        print_windows(&t, WARM_WINDOWS);
    for (int k = 0; k < (t.way == BALANCER || t.way == OFF ? WARM_STEPS : 20) && t.way < WINDOWS; k++)
        step(&t);
    if (t.way == SHIFT) {
        wait_for_start();
        for (int r = 0; r < 2; r++)
            atomic_store(&sample_ns[r], atoll(argv[5 + r]));
        print_windows(&t, WARM_WINDOWS);
        printf("result 1 1 1\n");
        fflush(stdout);
    } else {
        measure(&t, atof(argv[2]));
    }
    trek_graph_free(&t.graph);
    trek_loader_free(&t.loader);
    return 0;
}

/* --- the measuring process ------------------------------------------------------------------- */

typedef struct window {
    double counts[2], rate;
    bool whole;
} window;

typedef struct process {
    pid_t pid;
    FILE *from;
    int to, n_windows;
    window windows[MOST_WINDOWS];
    double rate;
} process;

static const char *self;

static process start(const work *w, way way, const double *ns, const double *then)
{
    int in[2], out[2];
    char args[7][32];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        die("pipe");
    snprintf(args[0], sizeof args[0], "%d", (int)way);
    snprintf(args[1], sizeof args[1], "%g", w->seconds);
    for (int k = 0; k < 4; k++)
        snprintf(args[2 + k], sizeof args[2 + k], "%.0f", k < 2 ? ns[k] : then ? then[k - 2] : 0);
    process p = { .pid = fork() };
    if (p.pid < 0)
        die("fork");
    if (p.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        setenv("TREK_THREADS", "1", 1);
        const char *mode = busy ? "--busy-child" : "--child";
        execl(self, self, mode, w->name, args[0], args[1], args[2], args[3], args[4], args[5], (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p.to = in[1];
    p.from = fdopen(out[0], "r");
    return p;
}

/* Reads up to that word. */
static void await(process *p, const char *word)
{
    char line[256];
    while (fgets(line, sizeof line, p->from)) {
        int whole;
        double samples, ns;
        window *w = &p->windows[p->n_windows < MOST_WINDOWS ? p->n_windows : MOST_WINDOWS - 1];
        if (sscanf(line, "window %lf %lf %d %lf", &w->counts[0], &w->counts[1], &whole, &w->rate) == 4) {
            w->whole = whole;
            p->n_windows++;
        }
        if (sscanf(line, "result %lf %lf", &samples, &ns) == 2)
            p->rate = samples * 1e9 / ns;
        if (strncmp(line, word, strlen(word)) == 0)
            return;
    }
    fprintf(stderr, "a measured process has ended\n");
    exit(1);
}

static void go(process *p)
{
    if (write(p->to, "g", 1) != 1)
        die("write");
}

static void end(process *p)
{
    close(p->to);
    fclose(p->from);
    waitpid(p->pid, NULL, 0);
}

/* The sum of the throughputs of two programs at once; *rates: of each. */
static double run_solos(const work *w, way way, const double *ns, double *rates)
{
    process p[2];
    for (int r = 0; r < 2; r++)
        p[r] = start(w, way, (const double[]){ ns[r], 0 }, NULL);
    for (int r = 0; r < 2; r++)
        await(&p[r], "ready");
    for (int r = 0; r < 2; r++)
        go(&p[r]);
    for (int r = 0; r < 2; r++)
        await(&p[r], "result");
    for (int r = 0; r < 2; r++) {
        end(&p[r]);
        rates[r] = p[r].rate;
    }
    return rates[0] + rates[1];
}

static process run_job(const work *w, way way, const double *ns, const double *then)
{
    process p = start(w, way, ns, then);
    await(&p, "ready");
    go(&p);
    await(&p, "result");
    end(&p);
    return p;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* ns of delay per sample that make rank r `factors[r]` times as slow, from what two unslowed programs do. */
static void delays(const work *w, const double *factors, double *ns)
{
    double rates[2], sum = run_solos(w, SOLO, (const double[]){ 0, 0 }, rates);
    for (int r = 0; r < 2; r++)
        ns[r] = (factors[r] - 1) * 2e9 / sum;
}

/* The first window from which on all whole ones, up to n, have counts within a tenth of the last one's ratio. */
static int settled(const window *windows, int n)
{
    int at = n;
    double ratio = 0;
    for (int k = n - 1; k >= 0; k--) {
        if (!windows[k].whole)
            continue;
        double own = windows[k].counts[0] / windows[k].counts[1];
        ratio = ratio > 0 ? ratio : own;
        if (fabs(own / ratio - 1) > 0.1)
            return at;
        at = k;
    }
    return at;
}

static void print_counts(const window *windows, int n)
{
    for (int k = 0; k < n; k++)
        printf(" %g:%g%s", windows[k].counts[0], windows[k].counts[1], windows[k].whole ? "" : "*");
    printf("\n");
}

/* Two ranks, slowed, by windows and by shares, against two programs that run batches of the same size: one of a rank
 * in a window, one of all ranks together where it is divided. */
static void uneven(const work *w, double factor, int repeats)
{
    double ns[2], rates[2], ratios[2][MOST_REPEATS], speeds[MOST_REPEATS], windows[MOST_REPEATS];
    delays(w, (const double[]){ 1, factor }, ns);
    for (int k = 0; k < repeats; k++) {
        double sum = run_solos(w, SOLO, ns, rates);
        process p = run_job(w, WINDOWS, ns, NULL), q = run_job(w, BALANCER, ns, NULL);
        speeds[k] = rates[0] / rates[1];
        ratios[0][k] = p.rate / sum;
        ratios[1][k] = q.rate / run_solos(w, SOLO_WIDE, ns, rates);
        windows[k] = settled(p.windows, p.n_windows);
        printf("  programs %.0f + %.0f samples/s, windows %.3f, shares %.3f; settled in window %g:", rates[0], rates[1],
               ratios[0][k], ratios[1][k], windows[k]);
        print_counts(p.windows, p.n_windows);
        fflush(stdout);
    }
    printf("%s, 1 : %g: windows %.3f, balanced shares %.3f of two programs (speeds 1 : %.2f), settled after %g windows\n",
           w->name, factor, median(ratios[0], repeats), median(ratios[1], repeats), median(speeds, repeats),
           median(windows, repeats));
}

static void equal(const work *w, int repeats)
{
    double off[2] = { 0, 0 }, rates[2], ratios[3][MOST_REPEATS];
    for (int k = 0; k < repeats; k++) {
        double plain = run_job(w, OFF, off, NULL).rate, balanced = run_job(w, BALANCER, off, NULL).rate;
        double windows = run_job(w, WINDOWS, off, NULL).rate, again = run_job(w, OFF, off, NULL).rate;
        ratios[0][k] = 2 * balanced / (plain + again);
        ratios[1][k] = 2 * windows / (plain + again);
        ratios[2][k] = (plain + again) / 2 / run_solos(w, SOLO, off, rates);
        printf("  off %.0f, %.0f samples/s; balancer %.3f, windows %.3f; off against programs %.3f\n", plain, again,
               ratios[0][k], ratios[1][k], ratios[2][k]);
        fflush(stdout);
    }
    printf("%s, equal ranks: balancer %.3f, windows %.3f of what is reached with both off, which is %.3f of two programs\n",
           w->name, median(ratios[0], repeats), median(ratios[1], repeats), median(ratios[2], repeats));
}

/* From 1 : 1 to 1 : 3 between two windows. */
static void shift(const work *w, int repeats)
{
    double even[2] = { 0, 0 }, ns[2], rates[2], by_window[WARM_WINDOWS][MOST_REPEATS], back[MOST_REPEATS];
    int n[WARM_WINDOWS] = { 0 };
    delays(w, (const double[]){ 1, 3 }, ns);
    for (int k = 0; k < repeats; k++) {
        process p = start(w, SHIFT, even, ns);
        await(&p, "ready");
        go(&p);
        await(&p, "result");
        end(&p);
        double sum = run_solos(w, SOLO, ns, rates);
        back[k] = WARM_WINDOWS;
        printf("  after the change:");
        for (int j = 0; j < WARM_WINDOWS; j++) {
            const window *at = &p.windows[WARM_WINDOWS + j];
            printf(" %g:%g%s %.3f", at->counts[0], at->counts[1], at->whole ? "" : "*", at->rate / sum);
            back[k] = at->rate / sum > 0.9 && back[k] == WARM_WINDOWS ? j + 1 : back[k];
            if (at->whole)
                by_window[j][n[j]++] = at->rate / sum;
        }
        printf("\n");
    }
    printf("%s, 1 : 1 to 1 : 3: over 0.9 of two programs in window %g; medians", w->name, median(back, repeats));
    for (int j = 0; j < WARM_WINDOWS; j++)
        printf(" %.3f", n[j] > 0 ? median(by_window[j], n[j]) : (double)NAN);
    printf("\n");
}

/* One rank, set up for it, against a loop of one's own. */
static void one(const work *w, int repeats)
{
    double none[2] = { 0, 0 }, ratios[MOST_REPEATS];
    for (int k = 0; k < repeats; k++) {
        double plain = run_job(w, PLAIN, none, NULL).rate, rank = run_job(w, SOLO, none, NULL).rate;
        rank += run_job(w, SOLO, none, NULL).rate;
        plain += run_job(w, PLAIN, none, NULL).rate;
        ratios[k] = rank / plain;
    }
    printf("%s, one rank: %.3f of a loop of one's own (%.3f to %.3f)\n", w->name, median(ratios, repeats), ratios[0],
           ratios[repeats - 1]);
}

/* On the first two cores, wherever this runs. */
static void take_two_cores(void)
{
    cpu_set_t all, two;
    CPU_ZERO(&two);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    for (int k = 0; k < CPU_SETSIZE && CPU_COUNT(&two) < 2; k++)
        if (CPU_ISSET(k, &all))
            CPU_SET(k, &two);
    sched_setaffinity(0, sizeof two, &two);
}

static int usage(void)
{
    fprintf(stderr, "trek-bench-cadence [--busy] [REPEATS] [WORK | uneven FACTOR | equal | shift | one]...\nworks:");
    for (int k = 0; k < N_WORKS; k++)
        fprintf(stderr, " %s (%s)", works[k].name, works[k].what);
    fprintf(stderr, "\nWithout more: lenet and transformer, 1 : 2.3 and 1 : 5, equal, in mid-run, one rank; 5 repeats.\n");
    return 2;
}

static void run_all(const work *w, int repeats)
{
    uneven(w, 2.3, repeats);
    uneven(w, 5, repeats);
    equal(w, repeats);
    shift(w, repeats);
    one(w, repeats);
}

int main(int argc, char **argv)
{
    self = "/proc/self/exe";
    if (argc == 9 && (strcmp(argv[1], "--child") == 0 || strcmp(argv[1], "--busy-child") == 0)) {
        busy = argv[1][2] == 'b';
        return child(argv + 2);
    }
    take_two_cores();
    int repeats = 5, at = 1;
    if (at < argc && strcmp(argv[at], "--busy") == 0)
        busy = at++;
    if (at < argc && atoi(argv[at]) > 0)
        repeats = atoi(argv[at++]);
    repeats = repeats < MOST_REPEATS ? repeats : MOST_REPEATS;
    const work *w = &works[0];
    for (bool all = at == argc; all; all = false)
        for (int k = 0; k < 2; k++)
            run_all(&works[k], repeats);
    for (; at < argc; at++) {
        bool found = false;
        for (int k = 0; k < N_WORKS; k++) {
            found |= strcmp(argv[at], works[k].name) == 0;
            w = strcmp(argv[at], works[k].name) == 0 ? &works[k] : w;
        }
        if (strcmp(argv[at], "uneven") == 0 && at + 1 < argc && atof(argv[at + 1]) >= 1)
            uneven(w, atof(argv[++at]), repeats);
        else if (strcmp(argv[at], "equal") == 0)
            equal(w, repeats);
        else if (strcmp(argv[at], "shift") == 0)
            shift(w, repeats);
        else if (strcmp(argv[at], "one") == 0)
            one(w, repeats);
        else if (!found)
            return usage();
    }
    return 0;
}
