/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers by weight, class and length: what they draw and how often, the same wherever one begins and on any number of
 * threads; and what loaders ask of samplers. */
#include "data/loader_position.h"
#include "data/sampler.h"
#include "data/told.h"
#include "tests/support/unit.h"

enum { MOST = 4096 };

/* An epoch, asked for as a whole and then in pieces, in another order and between other epochs. */
static void expect_positions(const trek_sampler *sampler, int64_t epoch, int64_t *order)
{
    static int64_t again[MOST];
    int64_t n = trek_sampler_length(sampler), other;
    assert_int_equal(trek_sampler_at(sampler, epoch, 0, n, order), TREK_OK);
    for (int64_t end = n, piece = 1; end > 0; end -= piece, piece = piece % 7 + 1) {
        piece = piece < end ? piece : end;
        assert_int_equal(trek_sampler_at(sampler, epoch, end - piece, piece, again + end - piece), TREK_OK);
        if (end % 16 == 0)
            assert_int_equal(trek_sampler_at(sampler, epoch + 1, 0, 1, &other), TREK_OK);
    }
    assert_memory_equal(order, again, (size_t)n * sizeof(*order));
}

/* Orders differ from epoch to epoch and with the seed. */
static void expect_other_orders(const trek_sampler *a, const trek_sampler *b)
{
    static int64_t orders[3][MOST];
    int64_t n = trek_sampler_length(a);
    trek_sampler_at(a, 0, 0, n, orders[0]);
    trek_sampler_at(a, 1, 0, n, orders[1]);
    trek_sampler_at(b, 0, 0, n, orders[2]);
    assert_memory_not_equal(orders[0], orders[1], (size_t)n * sizeof(int64_t));
    assert_memory_not_equal(orders[0], orders[2], (size_t)n * sizeof(int64_t));
}

static void weights_with_replacement(void **state)
{
    static const double weights[] = { 1, 0, 3, .5, 0, 2.5, 1, 0 };
    static int64_t order[MOST];
    trek_sampler *s = trek_sampler_weighted(weights, 8, MOST, true, 5), *t = trek_sampler_weighted(weights, 8, MOST, true, 6);
    int counts[8] = { 0 };
    double chi = 0;
    for (int epoch = 0; epoch < 4; epoch++) {
        expect_positions(s, epoch, order);
        for (int i = 0; i < MOST; i++)
            counts[order[i]]++;
    }
    for (int k = 0; k < 8; k++) {
        double expected = 4 * MOST * weights[k] / 8;
        if (weights[k] == 0)
            assert_int_equal(counts[k], 0);
        else
            chi += (counts[k] - expected) * (counts[k] - expected) / expected;
    }
    assert_true(chi < 27); /* 4 degrees of freedom: beyond it once in 50,000 */
    expect_other_orders(s, t);
    trek_sampler_free(&s);
    trek_sampler_free(&t);
    const double one = 1e-300;
    s = trek_sampler_weighted(&one, 1, 3, true, 0);
    assert_int_equal(trek_sampler_at(s, 0, 0, 3, order), TREK_OK);
    assert_true(order[0] == 0 && order[1] == 0 && order[2] == 0);
    trek_sampler_free(&s);
    expect_no_error();
}

/* Each at most once; the pairs that are drawn first and second come as often as successive draws give them. */
static void weights_without_replacement(void **state)
{
    enum { TRIALS = 20000 };
    static const double weights[] = { 1, 0, 2, 5 };
    int counts[4][4] = { { 0 } };
    double chi = 0;
    int64_t order[MOST];
    trek_sampler *s = trek_sampler_weighted(weights, 4, 2, false, 5);
    for (int epoch = 0; epoch < TRIALS; epoch++) {
        assert_int_equal(trek_sampler_at(s, epoch, 0, 2, order), TREK_OK);
        counts[order[0]][order[1]]++;
    }
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            double p = a == b ? 0 : weights[a] / 8 * weights[b] / (8 - weights[a]);
            if (p == 0)
                assert_int_equal(counts[a][b], 0);
            else
                chi += pow(counts[a][b] - TRIALS * p, 2) / (TRIALS * p);
        }
    assert_true(chi < 30); /* 5 degrees of freedom: beyond it once in 70,000 */
    trek_sampler_free(&s);
    static double many[1000];
    bool seen[1000] = { false };
    for (int i = 0; i < 1000; i++)
        many[i] = i % 10;
    s = trek_sampler_weighted(many, 1000, 900, false, 1);
    expect_positions(s, 3, order);
    for (int i = 0; i < 900; i++) {
        assert_false(seen[order[i]] || order[i] % 10 == 0);
        seen[order[i]] = true;
    }
    trek_sampler *t = trek_sampler_weighted(many, 1000, 900, false, 2);
    expect_other_orders(s, t);
    trek_sampler_free(&s);
    trek_sampler_free(&t);
    expect_no_error();
}

static void weights_refuse(void **state)
{
    static const double bad[][3] = { { 1, -1, 2 }, { 1, INFINITY, 2 }, { NAN, 1, 1 }, { 0, 0, 0 }, { 1e308, 1e308, 1 } };
    for (int k = 0; k < 5; k++) {
        REFUSED(trek_sampler_weighted(bad[k], 3, 1, k % 2, 0), TREK_ERR_ARGUMENT, k < 3 ? "weight of sample" : "their sum is");
    }
    static const double good[] = { 1, 0, 2 };
    REFUSED(trek_sampler_weighted(good, 3, 3, false, 0), TREK_ERR_ARGUMENT, "3 without replacement, but only 2 have a weight");
    REFUSED(trek_sampler_weighted(good, 3, 0, true, 0), TREK_ERR_ARGUMENT, "samples: 0 of 3");
    REFUSED(trek_sampler_weighted(good, 0, 1, true, 0), TREK_ERR_ARGUMENT, "samples: 1 of 0");
    REFUSED(trek_sampler_weighted(NULL, 3, 1, true, 0), TREK_ERR_ARGUMENT, "weights");
    REFUSED(trek_sampler_balanced(NULL, 3, 0, 0), TREK_ERR_ARGUMENT, "labels");
    REFUSED(trek_sampler_balanced((int64_t[]){ 1 }, 0, 0, 0), TREK_ERR_ARGUMENT, "samples: 0 of 0");
    REFUSED(trek_sampler_balanced((int64_t[]){ 1 }, 1, -1, 0), TREK_ERR_ARGUMENT, "samples: -1");
    REFUSED(trek_sampler_buckets(NULL, 3, 1, 0, 0), TREK_ERR_ARGUMENT, "lengths");
    for (int k = 0; k < 3; k++) {
        REFUSED(trek_sampler_buckets((int64_t[]){ 1 }, k != 0, k != 1, k == 2 ? -1 : 0, 0), TREK_ERR_ARGUMENT, "sampler_buckets");
    }
}

/* Classes of 700, 200, 90 and 10 samples, with gaps between their labels. */
static void classes_come_equally_often(void **state)
{
    static int64_t labels[1000], order[MOST];
    for (int i = 0; i < 1000; i++)
        labels[i] = i % 100 == 0 ? 40 : i % 10 == 1 ? (i < 900 ? -7 : 3) : i % 5 == 2 ? 3 : 900;
    trek_sampler *s = trek_sampler_balanced(labels, 1000, 4000, 5), *t = trek_sampler_balanced(labels, 1000, 4000, 6);
    expect_positions(s, 2, order);
    int uses[1000] = { 0 }, sizes[4] = { 0 };
    static const int64_t classes[] = { -7, 3, 40, 900 };
    int swapped = 0;
    for (int i = 0; i < 4000; i++) {
        uses[order[i]]++;
        swapped += i % 4 == 0 && labels[order[i]] != labels[order[i + 4 < 4000 ? i + 4 : 0]];
    }
    for (int i = 0; i < 4000; i += 4)
        for (int k = 0; k < 4; k++) {
            int there = 0;
            for (int j = 0; j < 4; j++)
                there += labels[order[i + j]] == classes[k];
            assert_int_equal(there, 1);
        }
    for (int i = 0; i < 1000; i++)
        for (int k = 0; k < 4; k++)
            sizes[k] += labels[i] == classes[k];
    for (int i = 0; i < 1000; i++)
        for (int k = 0; k < 4; k++)
            if (labels[i] == classes[k])
                assert_in_range(uses[i], 1000 / sizes[k], (1000 + sizes[k] - 1) / sizes[k]);
    assert_in_range(swapped, 600, 900); /* three in four begin with another class than the four before */
    expect_other_orders(s, t);
    trek_sampler_free(&s);
    trek_sampler_free(&t);
    s = trek_sampler_balanced(labels, 1000, 0, 0);
    assert_int_equal(trek_sampler_length(s), 1000);
    trek_sampler_free(&s);
    s = trek_sampler_balanced(labels, 1, 5, 0);
    assert_int_equal(trek_sampler_at(s, 0, 0, 5, order), TREK_OK);
    assert_true(order[0] == 0 && order[4] == 0);
    trek_sampler_free(&s);
    expect_no_error();
}

static void batches_of_similar_lengths(void **state)
{
    static const struct {
        int64_t n, batch, window;
    } cases[] = { { 1000, 16, 0 }, { 1000, 10, 5 }, { 1000, 7, 1000 }, { 33, 8, 2 }, { 5, 8, 0 }, { 64, 8, 1 }, { 1, 1, 1 } };
    static int64_t lengths[1000], order[MOST];
    for (int i = 0; i < 1000; i++)
        lengths[i] = told_draw(1, 2, i) & 255;
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int64_t n = cases[k].n, batch = cases[k].batch;
        trek_sampler *s = trek_sampler_buckets(lengths, n, batch, cases[k].window, 5);
        trek_sampler *t = trek_sampler_buckets(lengths, n, batch, cases[k].window, 6);
        bool seen[1000] = { false };
        expect_positions(s, 1, order);
        double spread = 0;
        for (int64_t first = 0; first < n; first += batch) {
            int64_t low = 255, high = 0;
            for (int64_t i = first; i < n && i < first + batch; i++) {
                assert_false(seen[order[i]]);
                seen[order[i]] = true;
                low = lengths[order[i]] < low ? lengths[order[i]] : low;
                high = lengths[order[i]] > high ? lengths[order[i]] : high;
            }
            spread += (double)(high - low) / (double)((n - 1) / batch + 1);
        }
        if (n == 1000) /* 255 / windows of batches, and about 230 of shuffled batches */
            assert_true(spread < (k == 0 ? 12 : k == 1 ? 60 : 3));
        if (n > 8)
            expect_other_orders(s, t);
        trek_sampler_free(&s);
        trek_sampler_free(&t);
    }
    expect_no_error();
}

/* In loaders: samples as positions say, however they are fetched; a resume in the middle. */
static void in_loaders(void **state)
{
    static int64_t lengths[90], order[MOST];
    static double weights[90];
    for (int i = 0; i < 90; i++) {
        lengths[i] = told_draw(1, 2, i) & 31;
        weights[i] = (double)(i % 7);
    }
    for (int way = 0; way < 12; way++)
        for (int workers = 1; workers < 5; workers += 3) {
            trek_sampler *made[2];
            for (int k = 0; k < 2; k++)
                made[k] = way % 4 == 0 ? trek_sampler_buckets(lengths, 90, 8, 3, 1)
                    : way % 4 == 1 ? trek_sampler_weighted(weights, 90, 70, false, 1)
                    : way % 4 == 2 ? trek_sampler_weighted(weights, 90, 200, true, 1) : trek_sampler_balanced(lengths, 90, 0, 1);
            int64_t n = trek_sampler_length(made[0]), from = way / 4 * 3;
            trek_loader *loader = trek_loader_new(told_new(95), &(trek_loader_opts){ .batch_size = 8, .sampler = made[0],
                                                                                   .workers = workers, .seed = 9 });
            for (int epoch = 0; epoch < 2; epoch++) {
                int64_t at = from * 8;
                assert_int_equal(trek_sampler_at(made[1], epoch, 0, n, order), TREK_OK);
                assert_int_equal(trek_loader_seek(loader, epoch, from), TREK_OK);
                for (trek_batch *batch; (batch = trek_loader_next(loader));)
                    for (int64_t i = 0; i < trek_batch_size(batch); i++, at++) {
                        assert_int_equal(numbers(batch, "index")[i], order[at]);
                        assert_true(numbers(batch, "draw")[i] == told_draw(9, epoch, order[at]));
                    }
                assert_int_equal(at, n);
            }
            trek_loader_free(&loader);
            trek_sampler_free(&made[1]);
            expect_no_error();
        }
    REFUSED(trek_loader_new(told_new(89),
                            &(trek_loader_opts){ .batch_size = 8, .sampler = trek_sampler_weighted(weights, 90, 9, true, 0) }),
            TREK_ERR_ARGUMENT, "weighted is for 90 samples; dataset told has 89");
    REFUSED(trek_loader_new(told_new(3), &(trek_loader_opts){ .batch_size = 8, .sampler = trek_sampler_sequential(4) }),
            TREK_ERR_ARGUMENT, "sequential is for 4");
    REFUSED(trek_loader_new(told_new(90), &(trek_loader_opts){ .batch_size = 9,
                                                               .sampler = trek_sampler_buckets(lengths, 90, 8, 3, 1) }),
                                                               TREK_ERR_ARGUMENT, ".batch_size: 9; the sampler");
    assert_int_equal(told_alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(weights_with_replacement, clear_error),
        cmocka_unit_test_setup(weights_without_replacement, clear_error), cmocka_unit_test_setup(weights_refuse, clear_error),
        cmocka_unit_test_setup(classes_come_equally_often, clear_error),
        cmocka_unit_test_setup(batches_of_similar_lengths, clear_error), cmocka_unit_test_setup(in_loaders, clear_error),
    };
    return cmocka_run_group_tests_name("samplers", tests, NULL, NULL);
}
