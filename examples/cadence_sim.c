/* SPDX-License-Identifier: Apache-2.0 */
/* Shows what the balancer, El Che and grains do with up to thousands of uneven ranks. Their code is the real one; the ranks and
 * the network are simulated.
 *
 *   cadence_sim --help
 *
 * A rank takes a given time for each sample and a fixed time for each batch, with jitter. The throughput is compared with the
 * ideal, which is the sum of what the ranks reach alone. */
#include "arguments.h"
#include "trek.h"
#include "cadence_ranks.h"
#include "cadence_grains.h"

enum { STEPS_A_WINDOW = 10, SCHEMES = 5, MOST_ROWS = 32 };
enum { SUMS = 2 }; /* sums of grains have 64 bits for each number of 32 */

/* How a scheme did. */
typedef struct score {
    double samples, ms, ideal_samples;      /* once calibrated */
    double before;                          /* fraction of compute that was of use, last before the slow-down */
    int back;                               /* windows or steps until nine tenths of it were reached again; -1: not */
    double samples_a_step;                  /* at the end */
    double idle;                            /* part of the ranks' time in which they wait for the last one of the step */
    int counted;                            /* steps */
    int64_t anchor;
} score;

static const char *const scheme_names[SCHEMES] = { "equal", "balancer", "El Che", "constant", "grains" };

/* --- schemes --------------------------------------------------------------------------- */

/* ms: how long each rank has computed. */
static void count_step(const simulation *s, score *score, int step, int steps, double longest, double samples, const double *ms)
{
    double rate = ideal_rate(s), useful = samples / longest / rate, computed = 0;
    if (step < steps / 2)
        score->before = useful;
    else if (score->back < 0 && useful >= 0.9 * score->before)
        score->back = step - steps / 2;
    score->samples_a_step = samples;
    if (step < steps / 6) /* calibration */
        return;
    for (int r = 0; r < s->ranks; r++)
        computed += ms[r];
    score->idle += 1 - computed / (longest * s->ranks);
    score->counted++;
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
        count_step(s, &score, step, steps, longest, (double)batch, s->ms);
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
        count_step(s, &score, window, windows, longest, batches * s->o->batch, s->ms);
        trek_elche_report(elche, s->ms, s->counts, s->communication_ms);
    }
    score.anchor = elche ? trek_elche_anchor(elche) : 0;
    trek_elche_free(&elche);
    return score;
}

/* --- a simulation ---------------------------------------------------------------------- */

static bool simulation_make(simulation *s, const options *o, int ranks)
{
    size_t n = (size_t)ranks;
    *s = (simulation){ .o = o, .ranks = ranks, .communication_ms = network_ms(o, ranks, 1), .pace = malloc(n * sizeof *s->pace),
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

/* --- grains ---------------------------------------------------------------------------- */

/* What the counters, the waiting and deaths come to. */
typedef struct bag {
    score score;
    double waiting, idle;                   /* parts of the ranks' time: for answers; and for the last one of the step */
    double questions;                       /* a second, to the common counter */
    double step_ms;
} bag;

static int64_t grains_of(const simulation *s) { return (int64_t)s->o->batch * s->ranks / s->o->grain; }

/* Steps of one global batch, as a bag of grains. by_machine: ranks that have a counter of their own; 0: one for all. The balancer
 * measures the speeds. */
static bag run_grains(simulation *s, const char *speeds, int by_machine)
{
    bag bag = { .score.back = -1 };
    grain_step g;
    int steps = s->o->windows;
    trek_balancer *balancer = trek_balancer_new(s->ranks, NULL);
    set_speeds(s, speeds);
    for (int r = 0; r < s->ranks; r++)
        s->shares[r] = 1;
    if (!grains_make(&g, s, s->shares, by_machine))
        steps = 0;
    for (int step = 0; step < steps && trek_error_status() == TREK_OK; step++) {
        if (step == steps / 2)
            slow_down(s);
        double longest = grains_run(&g, grains_of(s));
        count_step(s, &bag.score, step, steps, longest, (double)grains_of(s) * s->o->grain, g.compute_ms);
        trek_balancer_report(balancer, g.compute_ms, g.taken, s->communication_ms);
        for (int r = 0; r < s->ranks; r++)
            s->shares[r] = fmax(trek_balancer_throughput(balancer, r), 1e-9);
        if (step < steps / 6)
            continue;
        bag.waiting += g.waited_ms / (longest * s->ranks);
        bag.questions += 1e3 * (double)g.questions / (longest + s->communication_ms);
        bag.step_ms += longest;
    }
    bag.waiting /= bag.score.counted;
    bag.idle = bag.score.idle / bag.score.counted - bag.waiting;
    bag.questions /= bag.score.counted;
    bag.step_ms /= bag.score.counted;
    trek_balancer_free(&balancer);
    grains_clear(&g);
    return bag;
}

/* How much longer a step takes in which a rank dies, at any moment of it, on average. The speeds are known. */
static double pause_of_death(simulation *s, const char *speeds)
{
    enum { DEATHS = 40 };
    grain_step g;
    double alive = 0, dead = 0;
    set_speeds(s, speeds);
    for (int r = 0; r < s->ranks; r++)
        s->shares[r] = 1 / (s->o->grain * s->pace[r] + s->o->fixed_ms);
    bool made = grains_make(&g, s, s->shares, 0);
    for (int k = 0; k < DEATHS && made && trek_error_status() == TREK_OK; k++) {
        g.victim = -1;
        double whole = grains_run(&g, grains_of(s));
        g.victim = (int)(uniform(&s->random) * s->ranks);
        g.death_ms = uniform(&s->random) * whole;
        alive += whole;
        dead += grains_run(&g, grains_of(s));
    }
    grains_clear(&g);
    return (dead - alive) / DEATHS;
}

/* What deaths and arrivals cost a scheme: ms for each of them. */
typedef struct changes {
    double death, arrival;
} changes;

/* One that comes gets the state while the others run a step of that length, and they wait for what is left then. Without grains
 * all wait until it has been sent. Its own link is what limits it. */
static double pause_of_arrival(const options *o, double overlapped_ms)
{
    double state_ms = (o->state_mib > 0 ? o->state_mib : 3 * o->gradient_mib) * 1048576 / (o->bandwidth_gb * 1e6);
    return o->regroup_ms + fmax(0, state_ms - overlapped_ms);
}

/* Returns the ms an hour that all ranks lose, if for each rank that dies another one comes. */
static double lost_in_an_hour(const simulation *s, changes c) { return (c.death + c.arrival) * s->ranks / s->o->mean_hours; }

/* What a number of ranks comes to, with grains, shares and windows. */
typedef struct comparison {
    bag one, local;
    double idle[3];
    changes changes[3];
} comparison;

static comparison compare(simulation *s, const char *speeds)
{
    const options *o = s->o;
    comparison c = { .idle = { 0 } };
    s->communication_ms = network_ms(o, s->ranks, SUMS);
    c.one = run_grains(s, speeds, 0);
    c.local = run_grains(s, speeds, o->machine);
    double death = pause_of_death(s, speeds);
    s->communication_ms = network_ms(o, s->ranks, 1);
    score shares = run_split(s, speeds, true), windows = run_windows(s, speeds, false);
    double step = shares.ms / (shares.samples / shares.samples_a_step),
           window = windows.ms / (windows.samples / windows.samples_a_step), alone = pause_of_arrival(o, 0);
    c.idle[0] = c.local.idle + c.local.waiting;
    c.idle[1] = shares.idle / shares.counted;
    c.idle[2] = windows.idle / windows.counted;
    c.changes[0] = (changes){ death, pause_of_arrival(o, c.local.step_ms) };
    c.changes[1] = (changes){ o->detect_ms + step / 2, alone };
    c.changes[2] = (changes){ o->detect_ms + window / 2, alone };
    return c;
}

static void print_bags(const options *o, const char *speeds)
{
    static comparison rows[MOST_ROWS];
    double lost[MOST_ROWS][3];
    int n = 0;
    printf("\nspeeds: %s; network: %s, %g MiB; jitter %g; grains of %d samples, %g of them ahead; a question: %g us\n", speeds,
           o->network, o->gradient_mib, o->jitter, o->grain, o->ahead, o->counter_us);
    printf("%24s | %-36s | %-36s\n", "", "one counter", "one for each machine, and a common one");
    printf("%6s %8s %8s | %12s %11s %11s | %12s %11s %11s\n", "ranks", "grains", "step ms", "questions/s", "waiting %", "idle %",
           "questions/s", "waiting %", "idle %");
    for (int ranks = o->from; ranks <= o->to && n < MOST_ROWS && trek_error_status() == TREK_OK; ranks *= 2, n++) {
        simulation s;
        if (simulation_make(&s, o, ranks)) {
            rows[n] = compare(&s, speeds);
            const bag *one = &rows[n].one, *local = &rows[n].local;
            printf("%6d %8lld %8.2f | %12.0f %11.3f %11.2f | %12.0f %11.3f %11.2f\n", ranks, (long long)grains_of(&s),
                   one->step_ms, one->questions, 100 * one->waiting, 100 * one->idle, local->questions, 100 * local->waiting,
                   100 * local->idle);
            for (int k = 0; k < 3; k++)
                lost[n][k] = lost_in_an_hour(&s, rows[n].changes[k]);
        }
        simulation_clear(&s);
    }
    printf("\n%6s | %-23s | %-23s | %-23s | %-26s\n", "", "lost to waiting, %", "pause after a death, ms", "after an arrival, ms",
           "both, s lost in an hour");
    printf("%6s | %7s %7s %7s | %7s %7s %7s | %7s %7s %7s | %8s %8s %8s\n", "ranks", "grains", "shares", "windows", "grains",
           "shares", "windows", "grains", "shares", "windows", "grains", "shares", "windows");
    for (int k = 0; k < n && trek_error_status() == TREK_OK; k++) {
        const comparison *c = &rows[k];
        const changes *all = c->changes;
        printf("%6d | %7.2f %7.2f %7.2f | %7.1f %7.1f %7.1f | %7.1f %7.1f %7.1f | %8.3f %8.3f %8.3f\n", o->from << k,
               100 * c->idle[0], 100 * c->idle[1], 100 * c->idle[2], all[0].death, all[1].death, all[2].death, all[0].arrival,
               all[1].arrival, all[2].arrival, 1e-3 * lost[k][0], 1e-3 * lost[k][1], 1e-3 * lost[k][2]);
    }
}

/* --- tables and plots ------------------------------------------------------------------ */

static void print_head(const options *o, const char *speeds)
{
    printf("\nspeeds: %s; network: %s, %g MiB; jitter %g", speeds, o->network, o->gradient_mib, o->jitter);
    if (o->slow_factor != 1)
        printf("; in the middle of the run %g of the ranks become %g times as slow", o->slow_ranks, o->slow_factor);
    printf("\n%6s %8s %12s |%27s  samples/s and %% of ideal%26s| %6s %10s", "ranks", "reduce", "ideal", "", "", "anchor",
           "samples");
    if (o->slow_factor != 1)
        printf(" | %s", "back at 0.9 of before after");
    printf("\n%6s %8s %12s |", "", "ms", "samples/s");
    for (int k = 0; k < SCHEMES; k++)
        printf(" %12s %5s", scheme_names[k], "%");
    printf(" | %6s %10s", "", "a window");
    if (o->slow_factor != 1)
        printf(" | %s", "steps, windows, windows, steps");
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
    static const char marks[SCHEMES] = { '=', 'b', 'E', 'c', 'g' };
    enum { HEIGHT = 20 };
    printf("\n%% of ideal:  = equal split  b balancer  E El Che  c El Che, constant global batch  g grains\n");
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
            s.communication_ms = network_ms(o, ranks, SUMS);
            scores[4] = run_grains(&s, speeds, 0).score;
            s.communication_ms = network_ms(o, ranks, 1);
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
        { "--network", "ring|tree|hierarchical", "network over which the ranks reduce", .choice = &o->network },
        { "--from", "N", "smallest number of ranks", .whole = &o->from, .least = 2, .most = MOST_RANKS },
        { "--to", "N", "largest number of ranks; --from is doubled up to it", .whole = &o->to, .least = 2, .most = MOST_RANKS },
        { "--ranks", "N", "simulates only this number of ranks", .whole = &o->ranks, .least = 2, .most = MOST_RANKS },
        { "--ratio", "X", "speed of the slowest rank divided by that of the fastest, for two and uniform", .number = &o->ratio,
          .least = 1, .most = 1e4 },
        { "--slow-share", "X", "fraction of slow ranks, for two", .number = &o->slow_share, .least = 0, .most = 1 },
        { "--sigma", "X", "standard deviation of the logarithm of the speed, for lognormal", .number = &o->sigma, .least = 0,
          .most = 4 },
        { "--jitter", "X", "standard deviation of a batch's time", .number = &o->jitter, .least = 0, .most = 1 },
        { "--slow-ranks", "X", "fraction of the ranks that become slower in the middle of the run", .number = &o->slow_ranks,
          .least = 0, .most = 1 },
        { "--slow-factor", "X", "factor by which these ranks become slower; 1: no change", .number = &o->slow_factor,
          .least = 0.01, .most = 1e4 },
        { "--batch", "N", "number of samples in a rank's batch", .whole = &o->batch, .least = 1, .most = 1e6 },
        { "--batch-ms", "X", "time of a sample at speed 1", .number = &o->batch_ms, .least = 1e-3, .most = 1e6 },
        { "--fixed-ms", "X", "fixed time of each batch, in addition", .number = &o->fixed_ms, .least = 0, .most = 1e6 },
        { "--gradient", "MIB", "to be reduced", .number = &o->gradient_mib, .least = 0, .most = 1e6 },
        { "--latency", "US", "of the network, microseconds", .number = &o->latency_us, .least = 0, .most = 1e6 },
        { "--bandwidth", "X", "of a link, GB/s", .number = &o->bandwidth_gb, .least = 1e-3, .most = 1e6 },
        { "--machine", "N", "ranks on each machine, for hierarchical", .whole = &o->machine, .least = 1, .most = MOST_RANKS },
        { "--local-latency", "US", "inside of one", .number = &o->local_latency_us, .least = 0, .most = 1e6 },
        { "--local-bandwidth", "X", "inside of one", .number = &o->local_bandwidth_gb, .least = 1e-3, .most = 1e6 },
        { "--windows", "N", "number of simulated windows; for a split, ten steps each", .whole = &o->windows, .least = 12,
          .most = 1e5 },
        { "--anchor", "N", "El Che's anchor at the beginning", .whole = &o->anchor, .least = 1, .most = 200 },
        { "--overhead", "X", "El Che's target", .number = &o->overhead, .least = 0.01, .most = 0.5 },
        { "--global", "X", "mean number of batches of a rank, with a constant global batch", .number = &o->global, .least = 1,
          .most = 1e4 },
        { "--grain", "N", "number of samples in a grain", .whole = &o->grain, .least = 1, .most = 1e6 },
        { "--ahead", "X", "part of the grains that is divided before the step", .number = &o->ahead, .least = 0, .most = 1 },
        { "--counter", "US", "time in which the counter of grains answers one question", .number = &o->counter_us, .least = 0,
          .most = 1e6 },
        { "--detect", "MS", "time until a death is known", .number = &o->detect_ms, .least = 0, .most = 1e6 },
        { "--regroup", "MS", "time in which processes find each other when one has come", .number = &o->regroup_ms, .least = 0,
          .most = 1e6 },
        { "--state", "MIB", "that one which comes gets; 0: three times the gradient", .number = &o->state_mib, .least = 0,
          .most = 1e6 },
        { "--hours", "X", "mean time after which a rank dies, and another one comes", .number = &o->mean_hours, .least = 1e-3,
          .most = 1e9 },
        { "--grains", "", "shows the questions, the waiting and the deaths with grains", .flag = &o->grains },
        { "--seed", "N", "of speeds and jitter", .seed = &o->seed },
        { "--plot", "", "also draws the table", .flag = &o->plot },
    };
    arguments_read(argc, argv,
                   "What balancer, El Che and grains make of uneven ranks, simulated. equal: each rank the same number of\n"
                   "samples. balancer: shares by measured throughput. El Che: whole batches at each rank's own\n"
                   "pace. constant: El Che with a constant global batch. grains: one global batch in each step, of which\n"
                   "ranks take parts while it runs. The first sixth of a run, in which they calibrate, is not counted.",
                   list, sizeof list / sizeof *list);
    if (o->ranks > 0)
        o->from = o->to = o->ranks;
}

int main(int argc, char **argv)
{
    static const char *const all[] = { "equal", "two", "lognormal", "uniform" };
    options o = { .from = 2, .to = 4096, .speeds = "two", .network = "hierarchical", .ratio = 3, .slow_share = 0.5, .sigma = 0.4,
                  .jitter = 0.05, .slow_ranks = 0.1, .slow_factor = 1, .batch = 64, .batch_ms = 50, .fixed_ms = 0.5,
                  .gradient_mib = 100, .latency_us = 10, .bandwidth_gb = 12.5, .machine = 8, .local_latency_us = 3,
                  .local_bandwidth_gb = 100, .windows = 60, .anchor = 10, .overhead = 0.1, .global = 10, .grain = 4, .ahead = 0.5,
                  .counter_us = 5, .detect_ms = 50, .regroup_ms = 30, .mean_hours = 1000,
                  .seed = 1 };
    parse(argc, argv, &o);
    for (int k = 0; k < 4; k++)
        if (strcmp(o.speeds, all[k]) == 0 || strcmp(o.speeds, "all") == 0)
            (o.grains ? print_bags : run_speeds)(&o, all[k]);
    if (trek_error_status() == TREK_OK)
        return 0;
    fprintf(stderr, "%s\n", trek_error());
    return 1;
}
