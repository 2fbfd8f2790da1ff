/* SPDX-License-Identifier: Apache-2.0 */
/* What balancer and El Che make of up to thousands of uneven ranks: their real
 * code, on simulated ranks and a simulated network.
 *
 *   cadence_sim --help
 *
 * A rank takes so many milliseconds a sample and a fixed cost a batch, with jitter.
 * Throughput is set against the ideal, the sum of what the ranks do each by itself. */
#include <math.h>

#include "arguments.h"
#include "trek.h"

enum { MOST_RANKS = 65536, STEPS_A_WINDOW = 10, SCHEMES = 4, MOST_ROWS = 32 };

typedef struct options {
    int from, to, ranks;                    /* numbers of ranks: doubled from one to the other, or one */
    int batch, machine, windows, anchor;
    uint64_t seed;
    const char *speeds, *network;
    double ratio, slow_share, sigma, jitter;
    double slow_ranks, slow_factor;         /* the slow-down in mid-run */
    double batch_ms, fixed_ms;
    double gradient_mib, latency_us, bandwidth_gb, local_latency_us, local_bandwidth_gb;
    double overhead, global;
    bool plot;
} options;

/* One number of ranks. */
typedef struct simulation {
    const options *o;
    int ranks;
    double *pace;                           /* ms a sample, at present */
    double *ms;                             /* what is reported */
    int64_t *counts;                        /* batches or samples */
    double *shares;
    double communication_ms;
    uint64_t random;
} simulation;

/* How a scheme did. */
typedef struct score {
    double samples, ms, ideal_samples;      /* once calibrated */
    double before;                          /* fraction of compute that was of use, last before the slow-down */
    int back;                               /* windows or steps until nine tenths of it were reached again; -1: not */
    double samples_a_step;                  /* at the end */
    int64_t anchor;
} score;

static const char *const scheme_names[SCHEMES] = { "equal", "balancer", "El Che", "constant" };

/* --- random numbers -------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) /* splitmix64, by Sebastiano Vigna, public domain */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) { return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53; }

static double normal(uint64_t *state) /* Box and Muller */
{
    double u = uniform(state), v = uniform(state);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* --- ranks and network ----------------------------------------------------------------- */

/* How many times as long as the fastest kind of rank this one takes. */
static double slowness(simulation *s, const char *speeds, int rank)
{
    const options *o = s->o;
    if (strcmp(speeds, "two") == 0) /* every so many'th is slow */
        return floor((rank + 1) * o->slow_share) > floor(rank * o->slow_share) ? o->ratio : 1;
    if (strcmp(speeds, "lognormal") == 0)
        return exp(o->sigma * normal(&s->random));
    if (strcmp(speeds, "uniform") == 0)
        return 1 + (o->ratio - 1) * uniform(&s->random);
    return 1;
}

static double network_ms(const options *o, int ranks)
{
    double bytes = o->gradient_mib * 1048576, latency = o->latency_us * 1e-3, per_ms = o->bandwidth_gb * 1e6;
    if (ranks < 2)
        return 0;
    if (strcmp(o->network, "ring") == 0)
        return 2 * (ranks - 1) * latency + 2.0 * (ranks - 1) / ranks * bytes / per_ms;
    if (strcmp(o->network, "tree") == 0) /* in pieces, up and down at once */
        return 2 * ceil(log2(ranks)) * latency + 2 * bytes / per_ms;
    int inside = ranks < o->machine ? ranks : o->machine, machines = (ranks + inside - 1) / inside;
    double local =
        2 * (inside - 1) * o->local_latency_us * 1e-3 + 2.0 * (inside - 1) / inside * bytes / (o->local_bandwidth_gb * 1e6);
    return local + 2 * (machines - 1) * latency + 2.0 * (machines - 1) / machines * bytes / per_ms;
}

static void set_speeds(simulation *s, const char *speeds)
{
    s->random = s->o->seed;
    for (int r = 0; r < s->ranks; r++)
        s->pace[r] = slowness(s, speeds, r) * s->o->batch_ms / s->o->batch;
}

/* From mid-run on the first ranks are slower. */
static void slow_down(simulation *s)
{
    for (int r = 0; r < s->ranks && r < (int)ceil(s->o->slow_ranks * s->ranks); r++)
        s->pace[r] *= s->o->slow_factor;
}

/* `batches` batches of `samples` each; jitter is independent from batch to batch. */
static double work_ms(simulation *s, int rank, double batches, double samples)
{
    if (batches <= 0 || samples <= 0)
        return 0;
    double ms = batches * (samples * s->pace[rank] + s->o->fixed_ms);
    return s->o->jitter > 0 ? ms * fmax(0.2, 1 + s->o->jitter / sqrt(batches) * normal(&s->random)) : ms;
}

/* Samples a millisecond of all ranks, each by itself. */
static double ideal_rate(const simulation *s)
{
    double sum = 0;
    for (int r = 0; r < s->ranks; r++)
        sum += s->o->batch / (s->o->batch * s->pace[r] + s->o->fixed_ms);
    return sum;
}

/* --- schemes --------------------------------------------------------------------------- */

static void count_step(const simulation *s, score *score, int step, int steps, double longest, double samples)
{
    double rate = ideal_rate(s), useful = samples / longest / rate;
    if (step < steps / 2)
        score->before = useful;
    else if (score->back < 0 && useful >= 0.9 * score->before)
        score->back = step - steps / 2;
    score->samples_a_step = samples;
    if (step < steps / 6) /* calibration */
        return;
    score->samples += samples;
    score->ms += longest + s->communication_ms;
    score->ideal_samples += rate * (longest + s->communication_ms);
}

/* Each step one global batch, split among the ranks: equally, or by the balancer. */
static score run_split(simulation *s, const char *speeds, bool balanced)
{
    score score = { .back = -1 };
    int steps = s->o->windows * STEPS_A_WINDOW;
    int64_t batch = (int64_t)s->o->batch * s->ranks;
    trek_balancer *balancer = balanced ? trek_balancer_new(s->ranks, NULL) : NULL;
    set_speeds(s, speeds);
    trek_apportion(batch, NULL, s->ranks, s->counts);
    for (int step = 0; step < steps && trek_error_status() == TREK_OK; step++) {
        double longest = 0;
        if (step == steps / 2)
            slow_down(s);
        for (int r = 0; r < s->ranks; r++) {
            s->ms[r] = work_ms(s, r, s->counts[r] > 0, (double)s->counts[r]);
            longest = fmax(longest, s->ms[r]);
        }
        count_step(s, &score, step, steps, longest, (double)batch);
        if (balanced)
            trek_balancer_report(balancer, s->ms, s->counts, s->communication_ms);
        if (trek_balancer_changed(balancer) && trek_balancer_shares(balancer, s->shares) == TREK_OK)
            trek_apportion(batch, s->shares, s->ranks, s->counts);
    }
    trek_balancer_free(&balancer);
    return score;
}

/* Windows of whole batches by El Che; with `constant` their number stays. */
static score run_windows(simulation *s, const char *speeds, bool constant)
{
    score score = { .back = -1 };
    int windows = s->o->windows;
    trek_elche *elche = trek_elche_new(s->ranks,
                                       &(trek_elche_opts){ .anchor = s->o->anchor, .overhead_target = s->o->overhead,
        .global_batches = constant ? (int64_t)(s->o->global * s->ranks) : 0 });
    set_speeds(s, speeds);
    for (int window = 0; window < windows && trek_error_status() == TREK_OK; window++) {
        double longest = 0, batches = 0;
        if (window == windows / 2)
            slow_down(s);
        trek_elche_counts(elche, s->counts);
        for (int r = 0; r < s->ranks; r++) {
            s->ms[r] = work_ms(s, r, (double)s->counts[r], s->o->batch);
            longest = fmax(longest, s->ms[r]);
            batches += (double)s->counts[r];
        }
        count_step(s, &score, window, windows, longest, batches * s->o->batch);
        trek_elche_report(elche, s->ms, s->counts, s->communication_ms);
    }
    score.anchor = elche ? trek_elche_anchor(elche) : 0;
    trek_elche_free(&elche);
    return score;
}

/* --- tables and plots ------------------------------------------------------------------ */

static void print_head(const options *o, const char *speeds)
{
    printf("\nspeeds: %s; network: %s, %g MiB; jitter %g", speeds, o->network, o->gradient_mib, o->jitter);
    if (o->slow_factor != 1)
        printf("; in mid-run %g of the ranks become %g times as slow", o->slow_ranks, o->slow_factor);
    printf("\n%6s %8s %12s |%27s  samples/s and %% of ideal%26s| %6s %10s", "ranks", "reduce", "ideal", "", "", "anchor",
           "samples");
    if (o->slow_factor != 1)
        printf(" | %s", "back at 0.9 of before after");
    printf("\n%6s %8s %12s |", "", "ms", "samples/s");
    for (int k = 0; k < SCHEMES; k++)
        printf(" %12s %5s", scheme_names[k], "%");
    printf(" | %6s %10s", "", "a window");
    if (o->slow_factor != 1)
        printf(" | %s", "steps, windows, windows");
    printf("\n");
}

static void print_back(int back)
{
    if (back < 0)
        printf(" %7s", "never");
    else
        printf(" %7d", back);
}

static void print_row(const simulation *s, const score *scores, double *fractions)
{
    printf("%6d %8.3f %12.0f |", s->ranks, s->communication_ms, 1e3 * scores[2].ideal_samples / scores[2].ms);
    for (int k = 0; k < SCHEMES; k++) {
        fractions[k] = scores[k].samples / scores[k].ideal_samples;
        printf(" %12.0f %5.1f", 1e3 * scores[k].samples / scores[k].ms, 100 * fractions[k]);
    }
    printf(" | %6lld %10.0f", (long long)scores[2].anchor, scores[2].samples_a_step);
    if (s->o->slow_factor != 1) {
        printf(" |");
        for (int k = 1; k < SCHEMES; k++)
            print_back(scores[k].back);
    }
    printf("\n");
}

/* Per cent of the ideal over the ranks, a column of six for each number. */
static void print_plot(int rows, const int *ranks, double fractions[][SCHEMES])
{
    static const char marks[SCHEMES] = { '=', 'b', 'E', 'c' };
    enum { HEIGHT = 20 };
    printf("\n%% of ideal:  = equal split  b balancer  E El Che  c El Che, constant global batch\n");
    for (int line = HEIGHT; line >= 0; line--) {
        printf("%4d |", line * 100 / HEIGHT);
        for (int row = 0; row < rows; row++) {
            char cell[7] = "      ";
            for (int k = 0; k < SCHEMES; k++)
                if ((int)lround(fractions[row][k] * HEIGHT) == line)
                    cell[1 + k] = marks[k];
            printf("%s", cell);
        }
        printf("\n");
    }
    printf("     +");
    for (int row = 0; row < rows; row++)
        printf("------");
    printf("\n      ");
    for (int row = 0; row < rows; row++)
        printf("%5d ", ranks[row]);
    printf("ranks\n");
}

static bool simulation_make(simulation *s, const options *o, int ranks)
{
    size_t n = (size_t)ranks;
    *s = (simulation){ .o = o, .ranks = ranks, .communication_ms = network_ms(o, ranks), .pace = malloc(n * sizeof *s->pace),
                       .ms = malloc(n * sizeof *s->ms), .counts = malloc(n * sizeof *s->counts),
                       .shares = malloc(n * sizeof *s->shares) };
    if (!s->pace || !s->ms || !s->counts || !s->shares)
        trek_fail(TREK_ERR_MEMORY, "%d ranks do not fit", ranks);
    return trek_error_status() == TREK_OK;
}

static void simulation_clear(simulation *s)
{
    free(s->pace);
    free(s->ms);
    free(s->counts);
    free(s->shares);
}

static void run_speeds(const options *o, const char *speeds)
{
    double fractions[MOST_ROWS][SCHEMES];
    int numbers[MOST_ROWS], rows = 0;
    print_head(o, speeds);
    for (int ranks = o->from; ranks <= o->to && rows < MOST_ROWS && trek_error_status() == TREK_OK; ranks *= 2,
         rows++) {
        simulation s;
        if (simulation_make(&s, o, ranks)) {
            score scores[SCHEMES] = { run_split(&s, speeds, false), run_split(&s, speeds, true), run_windows(&s, speeds, false),
                                      run_windows(&s, speeds, true) };
            if (trek_error_status() == TREK_OK)
                print_row(&s, scores, fractions[rows]);
        }
        numbers[rows] = ranks;
        simulation_clear(&s);
    }
    if (o->plot && trek_error_status() == TREK_OK)
        print_plot(rows, numbers, fractions);
}

/* --- the command line ------------------------------------------------------------------ */

static void parse(int argc, char **argv, options *o)
{
    const argument list[] = {
        { "--speeds", "equal|two|lognormal|uniform|all", "of the ranks", .choice = &o->speeds },
        { "--network", "ring|tree|hierarchical", "by which they reduce", .choice = &o->network },
        { "--from", "N", "smallest number of ranks", .whole = &o->from, .least = 2, .most = MOST_RANKS },
        { "--to", "N", "largest number of ranks: --from doubled, and so on", .whole = &o->to, .least = 2, .most = MOST_RANKS },
        { "--ranks", "N", "one number of ranks instead", .whole = &o->ranks, .least = 2, .most = MOST_RANKS },
        { "--ratio", "X", "slowest to fastest, for two and uniform", .number = &o->ratio, .least = 1, .most = 1e4 },
        { "--slow-share", "X", "part of the ranks that is slow, for two", .number = &o->slow_share, .least = 0, .most = 1 },
        { "--sigma", "X", "of the logarithm, for lognormal", .number = &o->sigma, .least = 0, .most = 4 },
        { "--jitter", "X", "standard deviation of a batch's time", .number = &o->jitter, .least = 0, .most = 1 },
        { "--slow-ranks", "X", "part of the ranks that slows down in mid-run", .number = &o->slow_ranks, .least = 0, .most = 1 },
        { "--slow-factor", "X", "by which they do; 1: no slow-down", .number = &o->slow_factor, .least = 0.01, .most = 1e4 },
        { "--batch", "N", "samples in a rank's batch", .whole = &o->batch, .least = 1, .most = 1e6 },
        { "--batch-ms", "X", "what it takes at speed 1", .number = &o->batch_ms, .least = 1e-3, .most = 1e6 },
        { "--fixed-ms", "X", "in addition, for each batch", .number = &o->fixed_ms, .least = 0, .most = 1e6 },
        { "--gradient", "MIB", "to be reduced", .number = &o->gradient_mib, .least = 0, .most = 1e6 },
        { "--latency", "US", "of the network, microseconds", .number = &o->latency_us, .least = 0, .most = 1e6 },
        { "--bandwidth", "X", "of a link, GB/s", .number = &o->bandwidth_gb, .least = 1e-3, .most = 1e6 },
        { "--machine", "N", "ranks in a machine, for hierarchical", .whole = &o->machine, .least = 1, .most = MOST_RANKS },
        { "--local-latency", "US", "inside of one", .number = &o->local_latency_us, .least = 0, .most = 1e6 },
        { "--local-bandwidth", "X", "inside of one", .number = &o->local_bandwidth_gb, .least = 1e-3, .most = 1e6 },
        { "--windows", "N", "simulated; a split has ten steps for each", .whole = &o->windows, .least = 12, .most = 1e5 },
        { "--anchor", "N", "El Che's, at first", .whole = &o->anchor, .least = 1, .most = 200 },
        { "--overhead", "X", "El Che's target", .number = &o->overhead, .least = 0.01, .most = 0.5 },
        { "--global", "X", "batches a rank on average, with a constant global batch", .number = &o->global, .least = 1,
          .most = 1e4 },
        { "--seed", "N", "of speeds and jitter", .seed = &o->seed },
        { "--plot", "", "draws what the table says", .flag = &o->plot },
    };
    arguments_read(argc, argv, "What balancer and El Che make of uneven ranks, simulated. equal: each rank the same number of\n"
                   "samples. balancer: shares by measured throughput. El Che: whole batches at each rank's own\n"
                   "pace. constant: El Che with a constant global batch. The first sixth of a run, in which they\n"
                   "calibrate, is not counted.", list, sizeof list / sizeof *list);
    if (o->ranks > 0)
        o->from = o->to = o->ranks;
}

int main(int argc, char **argv)
{
    static const char *const all[] = { "equal", "two", "lognormal", "uniform" };
    options o = { .from = 2, .to = 4096, .speeds = "two", .network = "hierarchical", .ratio = 3, .slow_share = 0.5, .sigma = 0.4,
                  .jitter = 0.05, .slow_ranks = 0.1, .slow_factor = 1, .batch = 64, .batch_ms = 50, .fixed_ms = 0.5,
                  .gradient_mib = 100, .latency_us = 10, .bandwidth_gb = 12.5, .machine = 8, .local_latency_us = 3,
                  .local_bandwidth_gb = 100, .windows = 60, .anchor = 10, .overhead = 0.1, .global = 10, .seed = 1 };
    parse(argc, argv, &o);
    for (int k = 0; k < 4; k++)
        if (strcmp(o.speeds, all[k]) == 0 || strcmp(o.speeds, "all") == 0)
            run_speeds(&o, all[k]);
    if (trek_error_status() == TREK_OK)
        return 0;
    fprintf(stderr, "%s\n", trek_error());
    return 1;
}
