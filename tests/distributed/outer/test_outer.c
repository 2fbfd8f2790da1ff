/* SPDX-License-Identifier: Apache-2.0 */
/* The outer optimizer: options, steps against PyTorch's numbers, the plain mean, state, fragments; least squares on ranks that
 * work by themselves most of the time. */
#include <pthread.h>

#include "distributed/outer/fragments.h"
#include "distributed/outer/outer.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "trek.h"

/* --- options ------------------------------------------------------------------------------------- */

static void test_options(void **state)
{
    trek_outer_rule rule;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(trek_outer_check(k ? &(trek_outer_opts){ 0 } : NULL, "f", &rule), TREK_OK);
        assert_true(rule.lr == 0.7 && rule.momentum == 0.9 && rule.nesterov && rule.bits == 32 && rule.fragments == 1);
    }
    assert_int_equal(trek_outer_check(&(trek_outer_opts){ .lr = 1, .momentum = TREK_ZERO, .bits = 4, .fragments = 65536 }, "f",
                                      &rule), TREK_OK);
    assert_true(rule.lr == 1 && rule.momentum == 0 && !rule.nesterov && rule.bits == 4 && rule.fragments == 65536);
    assert_int_equal(trek_outer_check(&(trek_outer_opts){ .nesterov = TREK_OFF }, "f", &rule), TREK_OK);
    assert_true(rule.momentum == 0.9 && !rule.nesterov);
    static const struct { trek_outer_opts opts; const char *named; } bad[] = {
        { { .lr = -1 }, ".lr: -1" },             { { .lr = NAN }, ".lr: nan" },
        { { .lr = INFINITY }, ".lr: inf" },      { { .lr = TREK_ZERO }, ".lr: 0" },
        { { .momentum = 1 }, ".momentum: 1" },   { { .momentum = -0.1 }, ".momentum: -0.1" },
        { { .momentum = NAN }, ".momentum: nan" }, { { .nesterov = 1 }, ".nesterov: 1" },
        { { .bits = 5 }, ".bits: 5" },           { { .bits = TREK_OFF }, ".bits: -1" },
        { { .fragments = -1 }, ".fragments: -1" }, { { .fragments = 65537 }, ".fragments: 65537" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        trek_outer_rule before = rule;
        assert_int_equal(trek_outer_check(&bad[k].opts, "some_function", &rule), TREK_ERR_ARGUMENT);
        assert_non_null(strstr(trek_error(), "some_function: .outer: "));
        assert_non_null(strstr(trek_error(), bad[k].named));
        assert_memory_equal(&rule, &before, sizeof rule);
        trek_error_clear();
    }
}

static trek_outer *outer_of(trek_outer_opts opts, const float *center, int64_t count)
{
    trek_outer_rule rule;
    assert_int_equal(trek_outer_check(&opts, "test", &rule), TREK_OK);
    trek_outer *outer = trek_outer_new(&rule, center, count);
    assert_non_null(outer);
    return outer;
}

/* --- steps --------------------------------------------------------------------------------------- */

enum { N = 5, STEPS = 4 };

/* The means that processes arrive at, and where they began: exact in f32. */
static float mean_of(int step, int i) { return (float)((i * 7 + step * 3) % 11 - 5) / 8; }
static float begin_of(int i) { return (float)(i - 2) / 4; }

/* torch.optim.SGD(lr=0.7, ...) of PyTorch 2.15 in f32, gradients p - mean_of(step): p after each step. */
static const struct { trek_outer_opts opts; float after[STEPS][N]; } of_torch[] = {
    { { 0 },
      { { -0.66624999f, 0.414999992f, -0.332499981f, 0.748749971f, 0.00125002523f },
        { -0.183512524f, 0.977799952f, 0.134224981f, -0.533212483f, 0.451962471f },
        { 0.399035335f, -0.447203934f, 0.752533197f, -0.269843608f, -0.722718835f },
        { 0.863248527f, -0.282662243f, -0.587296784f, 0.488906473f, -0.385229647f } } },
    { { .nesterov = TREK_OFF },
      { { -0.587499976f, 0.099999994f, -0.174999997f, 0.512499988f, 0.237500012f },
        { -0.430000007f, 0.782499969f, -0.122499987f, 0.127499983f, 0.185000017f },
        { 0.100249976f, 0.586499929f, 0.360500008f, -0.30825001f, -0.341749966f },
        { 0.857299984f, -0.000450076594f, 0.192850024f, -0.222149998f, -0.664099991f } } },
    { { .momentum = TREK_ZERO },
      { { -0.587499976f, 0.099999994f, -0.174999997f, 0.512499988f, 0.237500012f },
        { -0.351249993f, 0.467499971f, 0.0350000076f, -0.108749993f, 0.421249986f },
        { -0.0178750027f, -0.122249998f, 0.360500008f, -0.0326250009f, -0.223624989f },
        { 0.344637513f, -0.0366750024f, -0.241849974f, 0.252712488f, -0.154587492f } } },
};

/* In one range, in ranges, and by gradients. */
static void test_steps(void **state)
{
    for (size_t k = 0; k < sizeof of_torch / sizeof *of_torch; k++)
        for (int way = 0; way < 3; way++) {
            float begin[N], mean[N];
            for (int i = 0; i < N; i++)
                begin[i] = begin_of(i);
            trek_outer *outer = outer_of(of_torch[k].opts, begin, N);
            for (int step = 0; step < STEPS; step++) {
                for (int i = 0; i < N; i++)
                    mean[i] = mean_of(step, i) + 0;
                if (way == 0)
                    trek_outer_step_to(outer, 0, N, mean);
                for (int i = 0; i < N && way == 1; i += 3)
                    trek_outer_step_to(outer, i, i + 3 < N ? i + 3 : N, mean + i);
                for (int i = 0; i < N && way == 2; i++)
                    mean[i] = outer->center[i] - mean[i];
                if (way == 2)
                    trek_outer_step(outer, 0, N, mean);
                for (int i = 0; i < N; i++)
                    assert_true(fabsf(outer->center[i] - of_torch[k].after[step][i]) <= 3e-7f);
            }
            trek_outer_free(&outer);
            assert_null(outer);
        }
}

/* Long ranges against f64, only the range moves; learning rate 1 without momentum takes the mean's bits. */
static void test_ranges(void **state)
{
    enum { COUNT = 5000, BEGIN = 17, END = 4321 };
    static float begin[COUNT], mean[COUNT];
    static double center[COUNT], momentum[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        center[i] = begin[i] = 3 * test_number(1, i);
    trek_outer *outer = outer_of((trek_outer_opts){ .lr = 0.5, .momentum = 0.8 }, begin, COUNT),
               *plain = outer_of((trek_outer_opts){ .lr = 1, .momentum = TREK_ZERO }, begin, COUNT);
    for (uint32_t step = 0; step < 5; step++) {
        for (uint32_t i = 0; i < COUNT; i++)
            mean[i] = 1e-3f * test_number(2 + step, i);
        trek_outer_step_to(outer, BEGIN, END, mean + BEGIN);
        trek_outer_step_to(plain, BEGIN, END, mean + BEGIN);
        for (int i = 0; i < COUNT; i++) {
            if (i >= BEGIN && i < END) {
                double gradient = center[i] - (double)mean[i];
                momentum[i] = 0.8 * momentum[i] + gradient;
                center[i] -= 0.5 * (gradient + 0.8 * momentum[i]);
            }
            assert_true(fabs((double)outer->center[i] - center[i]) <= 1e-5);
            assert_memory_equal(&plain->center[i], i >= BEGIN && i < END ? &mean[i] : &begin[i], sizeof(float));
        }
    }
    trek_outer_step_to(plain, 3, 3, NULL); /* nothing */
    trek_outer_free(&outer);
    trek_outer_free(&plain);
    trek_outer_free(&plain);
}

/* What goes on from exported arrays is what went on. */
static void test_state(void **state)
{
    float begin[N] = { 1, 2, 3, 4, 5 }, mean[N] = { 0 };
    for (int with = 0; with < 2; with++) {
        trek_outer_opts opts = { .momentum = with ? 0 : TREK_ZERO, .bits = with ? 8 : 0 };
        trek_outer *a = outer_of(opts, begin, N), *b = outer_of(opts, mean, N);
        trek_outer_step_to(a, 0, N, mean);
        trek_outer_array arrays[TREK_OUTER_ARRAYS];
        int n = trek_outer_arrays(a, arrays);
        assert_int_equal(n, with ? 3 : 1);
        assert_string_equal(arrays[0].name, "center");
        if (with) {
            assert_string_equal(arrays[1].name, "momentum");
            assert_string_equal(arrays[2].name, "error");
            a->error[2] = 0.25f;
        }
        for (int k = 0; k < n; k++)
            assert_int_equal(trek_outer_load(b, arrays[k].name, arrays[k].values, N), TREK_OK);
        assert_memory_equal(a->center, b->center, sizeof begin);
        trek_outer_step_to(a, 0, N, mean);
        trek_outer_step_to(b, 0, N, mean);
        assert_memory_equal(a->center, b->center, sizeof begin);
        assert_true(!with || b->error[2] == 0.25f);
        FAILS(trek_outer_load(b, "center", mean, N - 1), TREK_ERR_ARGUMENT, "");
        FAILS(trek_outer_load(b, with ? "nothing" : "momentum", mean, N), TREK_ERR_ARGUMENT, "");
        trek_outer_free(&a);
        trek_outer_free(&b);
    }
    REFUSED(trek_outer_new(&(trek_outer_rule){ .lr = 1, .bits = 32 }, NULL, 3), TREK_ERR_ARGUMENT, "");
}

static void test_without_memory(void **state)
{
    float begin[N] = { 0 };
    trek_outer_rule rule;
    trek_exchange exchange;
    assert_int_equal(trek_outer_check(&(trek_outer_opts){ .bits = 8 }, "test", &rule), TREK_OK);
    assert_int_equal(test_allocator_use(), TREK_OK);
    assert_int_equal(trek_exchange_init(&exchange, NULL), TREK_OK);
    int64_t held = test_allocator_blocks();
    for (int fail = 1; fail <= 6; fail++) {
        test_allocator_restart(fail);
        test_memory.fail_count = 2; /* a second try is made */
        trek_outer *outer = trek_outer_new(&rule, begin, N);
        trek_status status = outer ? trek_outer_exchange(outer, &exchange, 0, N, begin, 1) : trek_error_status();
        assert_int_equal(status, fail <= 5 ? TREK_ERR_MEMORY : TREK_OK);
        assert_int_equal(outer != NULL, fail >= 5);
        trek_error_clear();
        test_allocator_restart(0);
        trek_outer_free(&outer);
        assert_int_equal(test_allocator_blocks(), held);
    }
    trek_exchange_clear(&exchange);
    assert_int_equal(trek_allocator_set(NULL), TREK_OK);
}

/* --- fragments ----------------------------------------------------------------------------------- */

static int64_t elements(const int64_t *offsets, const int64_t *counts, int segments, int64_t begin, int64_t end)
{
    int64_t n = 0;
    for (int k = 0; k < segments; k++) {
        int64_t from = offsets[k] > begin ? offsets[k] : begin, to = offsets[k] + counts[k] < end ? offsets[k] + counts[k] : end;
        n += to > from ? to - from : 0;
    }
    return n;
}

static void test_fragments(void **state)
{
    enum { SEGMENTS = 30, FRAGMENTS = 70 };
    int cut = 0, met = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        int64_t offsets[SEGMENTS], counts[SEGMENTS], bounds[FRAGMENTS + 1], at = round % 3 * 16, total = 0;
        int segments = (int)(SEGMENTS * fabsf(test_number(round, 0))), fragments = 1 +
            (int)((FRAGMENTS - 1) * powf(test_number(round, 1), 4));
        for (int k = 0; k < segments; k++) {
            offsets[k] = at;
            counts[k] = (int64_t)pow(1000, fabsf(test_number(round, 2 + (uint32_t)k))) - (k % 7 == 3);
            at += counts[k] + (round % 2 ? (64 - counts[k] % 64) % 64 : 0);
            total += counts[k];
        }
        trek_fragments_cut(offsets, counts, segments, fragments, bounds);
        assert_int_equal(bounds[0], segments ? offsets[0] : 0);
        assert_int_equal(bounds[fragments], segments ? offsets[segments - 1] + counts[segments - 1] : 0);
        int64_t sum = 0;
        for (int f = 0; f < fragments; f++) {
            assert_true(bounds[f + 1] >= bounds[f]);
            int64_t n = elements(offsets, counts, segments, bounds[f], bounds[f + 1]);
            double share = (double)total / fragments;
            assert_true((double)n <= 1.5 * share + 1 && (double)n >= 0.5 * share - 1);
            sum += n;
            for (int k = 0; k < segments && f > 0; k++) {
                int64_t behind = bounds[f] - offsets[k], left = counts[k] - behind, near = total / fragments / 4;
                assert_true(behind <= 0 || left <= 0 || (behind > near && left > near));
                cut += behind > 0 && left > 0;
                met += bounds[f] == offsets[k];
            }
        }
        assert_int_equal(sum, total);
    }
    assert_true(cut > 1000 && met > 1000); /* both happen */
    int64_t layers[8] = { 0, 100, 200, 300, 400, 500, 600, 700 }, equal[8] = { 100, 100, 100, 100, 100, 100, 100, 104 },
        bounds[5];
    trek_fragments_cut(layers, equal, 8, 4, bounds);
    for (int f = 0; f < 4; f++)
        assert_int_equal(bounds[f], 200 * f);
}

/* --- least squares, on ranks that meet now and then --------------------------------------------- */

enum { DIMENSIONS = 96, ROWS = 200, LOCAL = 20, ROUNDS = 400, MOST_RANKS = 3 };

/* Half the mean of the rank's squared errors is x' curvature x / 2 - slope' x and a constant. */
typedef struct squares {
    double curvature[DIMENSIONS][DIMENSIONS], slope[DIMENSIONS];
} squares;

/* Ranks disagree on what x is best, some directions are steeper, and no x fits all rows. */
static void squares_of_rank(squares *s, int rank)
{
    memset(s, 0, sizeof *s);
    for (int row = 0; row < ROWS; row++) {
        double values[DIMENSIONS], y = 0.5 * test_number(50, (uint32_t)(rank * ROWS + row));
        for (int k = 0; k < DIMENSIONS; k++) {
            values[k] = (k % 8 == 0 ? 1.0 : 0.3) * test_number(100 + (uint32_t)(rank * ROWS + row), (uint32_t)k);
            y += values[k] * (double)(test_number(51, (uint32_t)k) + 0.5f * test_number(52 + (uint32_t)rank, (uint32_t)k));
        }
        for (int k = 0; k < DIMENSIONS; k++) {
            s->slope[k] += values[k] * y / ROWS;
            for (int j = 0; j < DIMENSIONS; j++)
                s->curvature[k][j] += values[k] * values[j] / ROWS;
        }
    }
}

static squares of_rank[MOST_RANKS];

/* The best x for all ranks, by elimination (the curvature is positive). */
static void solve(int ranks, double *x)
{
    static double a[DIMENSIONS][DIMENSIONS + 1];
    memset(a, 0, sizeof a);
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k < DIMENSIONS; k++) {
            a[k][DIMENSIONS] += of_rank[r].slope[k];
            for (int j = 0; j < DIMENSIONS; j++)
                a[k][j] += of_rank[r].curvature[k][j];
        }
    for (int k = 0; k < DIMENSIONS; k++)
        for (int row = k + 1; row < DIMENSIONS; row++)
            for (int j = DIMENSIONS; j >= k; j--)
                a[row][j] -= a[row][k] / a[k][k] * a[k][j];
    for (int k = DIMENSIONS - 1; k >= 0; k--) {
        x[k] = a[k][DIMENSIONS];
        for (int j = k + 1; j < DIMENSIONS; j++)
            x[k] -= a[k][j] * x[j];
        x[k] /= a[k][k];
    }
}

/* The loss of all ranks together above that of the best x. */
static double excess(int ranks, const double *best, const float *x)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k < DIMENSIONS; k++)
            for (int j = 0; j < DIMENSIONS; j++)
                sum += ((double)x[k] - best[k]) * of_rank[r].curvature[k][j] * ((double)x[j] - best[j]) / (2 * ranks);
    return sum;
}

typedef struct worker {
    int rank;
    bool feedback;
    trek_outer_opts opts;
    trek_comm *comm;
    float reached[DIMENSIONS];
    int64_t sent;
    trek_status status;
} worker;

static void local_steps(const squares *s, float *x, double lr)
{
    for (int step = 0; step < LOCAL; step++) {
        double gradient[DIMENSIONS];
        for (int k = 0; k < DIMENSIONS; k++) {
            gradient[k] = -s->slope[k];
            for (int j = 0; j < DIMENSIONS; j++)
                gradient[k] += s->curvature[k][j] * (double)x[j];
        }
        for (int k = 0; k < DIMENSIONS; k++)
            x[k] -= (float)(lr * gradient[k]);
    }
}

static void *work(void *arg)
{
    worker *me = arg;
    trek_outer_rule rule;
    trek_exchange exchange = { 0 };
    float x[DIMENSIONS] = { 0 };
    me->status = trek_outer_check(&me->opts, "test", &rule);
    trek_outer *outer = trek_outer_new(&rule, x, DIMENSIONS);
    if (me->status == TREK_OK)
        me->status = trek_exchange_init(&exchange, me->comm);
    const int64_t offset = 0, count = DIMENSIONS;
    int64_t bounds[9];
    trek_fragments_cut(&offset, &count, 1, rule.fragments, bounds);
    for (int round = 0; round < ROUNDS && me->status == TREK_OK; round++) {
        local_steps(&of_rank[me->rank], x, 0.2 / (1 + 0.05 * round));
        for (int f = 0; f < rule.fragments && me->status == TREK_OK; f++) {
            me->status = trek_outer_exchange(outer, &exchange, bounds[f], bounds[f + 1], x + bounds[f], 1);
            memcpy(x + bounds[f], outer->center + bounds[f], (size_t)(bounds[f + 1] - bounds[f]) * sizeof *x);
        }
        if (!me->feedback && outer->error)
            memset(outer->error, 0, sizeof x);
    }
    memcpy(me->reached, x, sizeof x);
    me->sent = exchange.sent;
    trek_outer_free(&outer);
    trek_exchange_clear(&exchange);
    return NULL;
}

/* How far the ranks come, as a part of the way; all have the same bits. */
static double train(int ranks, trek_outer_opts opts, bool feedback, int64_t *sent)
{
    trek_comm *comms[MOST_RANKS];
    worker workers[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    double best[DIMENSIONS];
    const float nowhere[DIMENSIONS] = { 0 };
    assert_int_equal(trek_comm_local(NULL, ranks, comms), TREK_OK);
    for (int r = 0; r < ranks; r++) {
        workers[r] = (worker){ .rank = r, .feedback = feedback, .opts = opts, .comm = comms[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, work, &workers[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        trek_comm_free(&comms[r]);
    }
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(workers[r].status, TREK_OK);
        assert_memory_equal(workers[r].reached, workers[0].reached, sizeof nowhere);
    }
    *sent = workers[0].sent;
    solve(ranks, best);
    return excess(ranks, best, workers[0].reached) / excess(ranks, best, nowhere);
}

static void test_least_squares(void **state)
{
    for (int r = 0; r < MOST_RANKS; r++)
        squares_of_rank(&of_rank[r], r);
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        int64_t sent[3], bytes_8 = 24 + 4 + DIMENSIONS, others = ranks - 1;
        double in_full = train(ranks, (trek_outer_opts){ 0 }, true, &sent[0]),
               bits_8 = train(ranks, (trek_outer_opts){ .bits = 8 }, true, &sent[1]),
               bits_4 = train(ranks, (trek_outer_opts){ .bits = 4 }, true, &sent[2]),
               fragments = train(ranks, (trek_outer_opts){ .bits = 4, .fragments = 2 }, true, &sent[2]),
               without = train(ranks, (trek_outer_opts){ .bits = 4 }, false, &sent[2]);
        print_message("%d ranks: left of the way in f32 %.2g, 8 bits %.2g, 4 bits %.2g, 2 fragments %.2g, without error feedback "
                      "%.2g\n", ranks, in_full, bits_8, bits_4, fragments, without);
        assert_true(in_full < 1e-4);
        assert_true(bits_8 < 1.1 * in_full);
        assert_true(bits_4 < 1.5 * in_full && fragments < 1.5 * in_full);
        assert_true(without > 50 * bits_4);
        assert_int_equal(sent[0], ROUNDS * (24 * others + 8 * DIMENSIONS * others / ranks));
        assert_int_equal(sent[1], ROUNDS * bytes_8 * others);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options), cmocka_unit_test(test_steps), cmocka_unit_test(test_ranges), cmocka_unit_test(test_state),
        cmocka_unit_test(test_without_memory), cmocka_unit_test(test_fragments), cmocka_unit_test(test_least_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
