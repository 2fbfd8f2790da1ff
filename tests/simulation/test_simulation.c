/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in simulated time: many schedules, each of a seed. A schedule that fails is run again without one fault after the other,
 * as long as it fails, and told with what is left. TREK_SIMULATION_SEED (with TREK_SIMULATION_SCENARIO, TREK_SIMULATION_LEFT_OUT)
 * replays one and prints what happens, TREK_SIMULATION_RUNS says how many there are, TREK_RANDOM_SEED where they begin. */
#include "tensor/log.h"
#include "tensor/trace.h"
#include "tests/simulation/scenario.h"
#include "tests/support/unit.h"

static const scenario *const scenarios[] = { &scenario_control, &scenario_regroup, &scenario_run, &scenario_grains,
                                             &scenario_loops, &scenario_counter };
enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

typedef struct result {
    uint64_t hash, steps;
    int processes, faults;
    char failure[1024];
} result;

/* The schedule that is run: it is told of a crash. */
static struct {
    const scenario *what;
    uint64_t seed;
    uint32_t left_out;
} present;

static result run(const scenario *what, uint64_t seed, uint32_t left_out, bool trace)
{
    present.what = what, present.seed = seed, present.left_out = left_out;
    sim_reset(seed);
    sim.trace = trace;
    sim.trace_points = trace && getenv("TREK_SIMULATION_POINTS");
    sim.left_out = left_out;
    sim.most_steps = 4400000;
    sim_random random = { seed };
    random.state = sim_draw(&random) ^ 12345;
    what->begin(&random);
    sim_faults_arm();
    sim_run();
    if (!sim.failure[0])
        what->check();
    result r = { .hash = sim.hash, .steps = sim.steps, .processes = sim.n_processes, .faults = sim.n_faults };
    memcpy(r.failure, sim.failure, sizeof r.failure);
    sim_clear();
    present.what = NULL;
    return r;
}

/* As few faults as the failure needs. */
static uint32_t shrink(const scenario *what, uint64_t seed, int faults)
{
    uint32_t left_out = 0;
    bool fewer = true;
    while (fewer) {
        fewer = false;
        for (int k = 0; k < faults; k++) {
            if (left_out >> k & 1)
                continue;
            result r = run(what, seed, left_out | 1u << k, false);
            if (!r.failure[0])
                continue;
            left_out |= 1u << k;
            fewer = true;
        }
    }
    return left_out;
}

static void tell(const scenario *what, uint64_t seed, const result *first)
{
    char text[200];
    uint32_t left_out = shrink(what, seed, first->faults);
    result r = run(what, seed, left_out, false);
    fprintf(stderr, "simulation: %s, seed %llu, %d processes: %s\n", what->name, (unsigned long long)seed, r.processes,
            r.failure);
    for (int k = 0; k < sim.n_faults; k++)
        if (!(left_out >> k & 1))
            fprintf(stderr, "  with: %s\n", sim_fault_text(&sim.faults[k], text, sizeof text));
    fprintf(stderr, "  again: TREK_SIMULATION_SCENARIO=%s TREK_SIMULATION_SEED=%llu TREK_SIMULATION_LEFT_OUT=%u\n", what->name,
            (unsigned long long)seed, left_out);
}

static uint64_t number_of(const char *name, uint64_t unset)
{
    const char *value = getenv(name);
    return value && *value ? strtoull(value, NULL, 10) : unset;
}

static const scenario *chosen(void)
{
    const char *name = getenv("TREK_SIMULATION_SCENARIO");
    for (int k = 0; name && k < SCENARIOS; k++)
        if (strcmp(scenarios[k]->name, name) == 0)
            return scenarios[k];
    return NULL;
}

/* Under sanitizers, which take ten times as long, a tenth of them. */
static uint64_t usual_runs(void)
{
    uint64_t runs = getenv("TREK_TEST_SHORT") ? 2000 : 20000;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    runs = 2000;
#endif
    return runs;
}

static void run_many(const scenario *what)
{
    uint64_t first = number_of("TREK_RANDOM_SEED", 0) * 1000003 + 1, steps = 0;
    int64_t runs = (int64_t)number_of("TREK_SIMULATION_RUNS", usual_runs()) * what->share / 1000;
    int failures = 0, most = (int)number_of("TREK_SIMULATION_FAILURES", 1);
    int64_t since = trek_clock_ns();
    for (int64_t k = 0; k < runs && failures < most; k++) {
        result r = run(what, first + (uint64_t)k, 0, false);
        steps += r.steps;
        if (!r.failure[0])
            continue;
        failures++;
        tell(what, first + (uint64_t)k, &r);
    }
    double s = (double)(trek_clock_ns() - since) * 1e-9;
    fprintf(stderr, "simulation: %s: %lld schedules in %.1f s (%.2f ms each), %.0f scheduling points each\n", what->name,
            (long long)runs, s, s * 1e3 / (double)(runs ? runs : 1), (double)steps / (double)(runs ? runs : 1));
    assert_int_equal(failures, 0);
}

static void test_schedules(void **state)
{
    for (int k = 0; k < SCENARIOS; k++)
        if (!chosen() || chosen() == scenarios[k])
            run_many(scenarios[k]);
}

/* Schedules that have failed once, for as long as the sources make the same ones of their seeds. */
static void test_kept_schedules(void **state)
{
    static const struct {
        const scenario *what;
        uint64_t seed;
        uint32_t left_out;
    } kept[] = {
        { &scenario_control, 77029463, 1 }, /* process 0 is cut off for longer than a gather's deadline */
        { &scenario_control, 8001028541, 0 }, /* a connection of the tree is torn, and process 0, which would know why, is gone */
        { &scenario_run, 7001022097, 0 }, /* a joiner comes again and again that one of the others never reaches */
    };
    (void)state;
    for (size_t k = 0; k < sizeof kept / sizeof kept[0]; k++) {
        result r = run(kept[k].what, kept[k].seed, kept[k].left_out, false);
        if (r.failure[0])
            tell(kept[k].what, kept[k].seed, &r);
        assert_string_equal(r.failure, "");
    }
}

/* --- replays -------------------------------------------------------------------------------------------------------- */

static uint64_t hash_of_some(void)
{
    uint64_t hash = 0;
    for (int k = 0; k < SCENARIOS; k++)
        for (uint64_t seed = 1; seed <= 20; seed++)
            hash = hash * 31 + run(scenarios[k], seed, 0, false).hash;
    return hash;
}

/* The same in this process twice, and in another one. */
static void test_a_seed_is_a_schedule(void **state)
{
    uint64_t here = hash_of_some();
    assert_int_equal(here, hash_of_some());
    unsigned long long there = 0;
    setenv("TREK_SIMULATION_HASH", "1", 1);
    FILE *other = popen("exec /proc/$PPID/exe", "r");
    unsetenv("TREK_SIMULATION_HASH");
    assert_non_null(other);
    assert_int_equal(fscanf(other, "%llx", &there), 1);
    assert_int_equal(pclose(other), 0);
    assert_int_equal(here, there);
}

static int replay(void)
{
    uint64_t seed = number_of("TREK_SIMULATION_SEED", 0);
    const scenario *what = chosen() ? chosen() : scenarios[0];
    result r = run(what, seed, (uint32_t)number_of("TREK_SIMULATION_LEFT_OUT", 0), true);
    fprintf(stderr, "simulation: %s, seed %llu, %d processes, %llu scheduling points, hash %016llx: %s\n", what->name,
            (unsigned long long)seed, r.processes, (unsigned long long)r.steps, (unsigned long long)r.hash,
            r.failure[0] ? r.failure : "as it should be");
    return r.failure[0] != '\0';
}

static void to_trace(trek_log_level level, const char *message, void *arg)
{
    sim_trace("says: %s", message);
}

int main(void)
{
    fiber_begin();
    setenv("TREK_CACHE", "off", 1);
    setenv("TREK_THREADS", "1", 1);
    trek_log_set(getenv("TREK_SIMULATION_SEED") ? TREK_LOG_LEVEL_DEBUG : TREK_LOG_LEVEL_ERROR, to_trace, NULL);
    sim_memory_begin();
    if (getenv("TREK_SIMULATION_HASH"))
        return printf("%llx\n", (unsigned long long)hash_of_some()) < 0;
    if (getenv("TREK_SIMULATION_SEED"))
        return replay();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_is_a_schedule),
        cmocka_unit_test(test_kept_schedules),
        cmocka_unit_test(test_schedules),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (present.what)
        fprintf(stderr, "simulation: %s, seed %llu, left out %u: it crashed\n", present.what->name,
                (unsigned long long)present.seed, present.left_out);
    return failed;
}
