/* SPDX-License-Identifier: Apache-2.0 */
/* Handing out batches: each once, in order, and what comes back first, whatever is asked for and given back. */
#include "distributed/rounds/dispatch.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { BATCHES = 97 };

static void test_in_order(void **state)
{
    trek_dispatch d = { 0 };
    trek_allotment a;
    assert_int_equal(trek_dispatch_begin(&d, 3, 10), TREK_OK);
    assert_int_equal(trek_dispatch_left(&d), 7);
    trek_dispatch_take(&d, 0, &a);
    assert_int_equal(a.n, 0);
    trek_dispatch_take(&d, 2, &a);
    assert_true(a.n == 1 && a.of[0].first == 3 && a.of[0].end == 5);
    trek_dispatch_take(&d, 100, &a);
    assert_true(a.n == 1 && a.of[0].first == 5 && a.of[0].end == 10);
    assert_int_equal(trek_dispatch_left(&d), 0);
    trek_dispatch_take(&d, 1, &a);
    assert_int_equal(trek_allotment_batches(&a), 0);
    assert_int_equal(trek_dispatch_begin(&d, 4, 4), TREK_OK);
    assert_int_equal(trek_dispatch_left(&d), 0);
    trek_dispatch_free(&d);
}

/* What was lost is in several stretches, which one allotment takes together, as far as it has room. */
static void test_given_back(void **state)
{
    trek_dispatch d = { 0 };
    trek_allotment a[6], b;
    assert_int_equal(trek_dispatch_begin(&d, 0, 20), TREK_OK);
    for (int k = 0; k < 6; k++)
        trek_dispatch_take(&d, 2, &a[k]);
    for (int k = 4; k >= 0; k -= 2)
        assert_int_equal(trek_dispatch_give_back(&d, &a[k]), TREK_OK);
    trek_dispatch_take(&d, 5, &b);
    assert_true(b.n == 3 && b.of[0].first == 0 && b.of[1].first == 4 && b.of[2].first == 8 && b.of[2].end == 9);
    assert_int_equal(trek_dispatch_give_back(&d, &b), TREK_OK);
    trek_dispatch_take(&d, 6, &b);
    assert_true(b.n == 4 && trek_allotment_batches(&b) == 6);
    trek_dispatch_drop(&d);
    assert_int_equal(trek_dispatch_left(&d), 0);
    trek_dispatch_free(&d);
}

/* Ranks that take, and now and then give back all that they have: in the end each batch was kept once. */
static void test_random(void **state)
{
    for (uint32_t seed = 0; seed < 50; seed++) {
        trek_dispatch d = { 0 };
        int kept[BATCHES] = { 0 };
        uint32_t at = 0;
        assert_int_equal(trek_dispatch_begin(&d, 0, BATCHES), TREK_OK);
        while (trek_dispatch_left(&d) > 0) {
            trek_allotment a;
            int64_t left = trek_dispatch_left(&d), wanted = 1 + (int64_t)(8 * (1 + test_number(seed, at++)) / 2);
            trek_dispatch_take(&d, wanted, &a);
            assert_true(a.n > 0 && trek_allotment_batches(&a) <= wanted);
            assert_int_equal(trek_dispatch_left(&d), left - trek_allotment_batches(&a));
            if (test_number(seed, at++) > 0.4) {
                assert_int_equal(trek_dispatch_give_back(&d, &a), TREK_OK);
                continue;
            }
            for (int k = 0; k < a.n; k++)
                for (int64_t i = a.of[k].first; i < a.of[k].end; i++)
                    kept[i]++;
        }
        for (int i = 0; i < BATCHES; i++)
            assert_int_equal(kept[i], 1);
        trek_dispatch_free(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_in_order), cmocka_unit_test(test_given_back),
                                        cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
