/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules against numbers printed by torch.optim.lr_scheduler (version 2), base lr 0.1. */
#include "optim/schedule.h"
#include "optim/schedules.h"
#include "tests/support/refused.h"

typedef struct point {
    int64_t step;
    double lr;
} point;

static void check_points(trek_schedule schedule, const point *points, size_t n)
{
    assert_int_not_equal(schedule.kind, TREK_SCHEDULE_KIND_NONE);
    for (size_t k = 0; k < n; k++) {
        double lr = trek_schedule_lr(&schedule, points[k].step);
        if (!(fabs(lr - points[k].lr) <= 1e-14))
            fail_msg("kind %d, step %d: %.17g, not %.17g", (int)schedule.kind, (int)points[k].step, lr, points[k].lr);
    }
}

#define CHECK(schedule, ...) \
    check_points(schedule, (const point[]){ __VA_ARGS__ }, sizeof((const point[]){ __VA_ARGS__ }) / sizeof(point))

static void expect_refusal(trek_schedule schedule, const char *names)
{
    assert_int_equal(schedule.kind, TREK_SCHEDULE_KIND_NONE);
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    if (!strstr(trek_error(), names))
        fail_msg("\"%s\" does not name %s", trek_error(), names);
    trek_error_clear();
    assert_true(isnan(trek_schedule_lr(&schedule, 0)));
    expect_error(TREK_ERR_ARGUMENT, "");
}

static void values_equal_pytorch(void **state)
{
    CHECK(trek_constant_lr(0.1), { 0, 0.1 }, { 1000000, 0.1 });
    /* CosineAnnealingLR(o, 20, 0.01); afterwards we stay at the minimum */
    CHECK(trek_cosine_lr(0.1, 20, 0.01), { 0, 0.1 }, { 5, 0.086819805153394644 }, { 13, 0.034570427511720389 }, { 20, 0.01 },
          { 30, 0.01 });
    /* StepLR(o, 3, 0.5) */
    CHECK(trek_step_lr(0.1, 3, 0.5), { 2, 0.1 }, { 3, 0.05 }, { 9, 0.0125 });
    /* MultiStepLR(o, [2, 5, 5, 8], 0.1) */
    CHECK(trek_multistep_lr(0.1, (const int64_t[]){ 5, 2, 5, 8 }, 4, 0.1), { 1, 0.1 }, { 2, 0.01 }, { 5, 1e-4 }, { 9, 1e-5 });
    /* ExponentialLR(o, 0.9) */
    CHECK(trek_exponential_lr(0.1, 0.9), { 0, 0.1 }, { 9, 0.03874204890000002 });
    /* PolynomialLR(o, 10, 2.0) */
    CHECK(trek_polynomial_lr(0.1, 10, 2.0), { 0, 0.1 }, { 3, 0.049 }, { 9, 0.001 }, { 11, 0.0 });
    /* OneCycleLR(o, 0.5, 20) */
    CHECK(trek_onecycle_lr(0.5, 20, NULL), { 0, 0.02 }, { 3, 0.33416407864998737 }, { 5, 0.5 }, { 6, 0.49373200311754367 },
          { 12, 0.25000099999999997 }, { 19, 2e-6 }, { 50, 2e-6 });
    /* OneCycleLR(o, 0.5, 20, anneal_strategy='linear', three_phase=True, pct_start=0.4, div_factor=10, final_div_factor=100) */
    CHECK(trek_onecycle_lr(0.5, 20, &(trek_onecycle_opts){ .pct_start = 0.4, .div_factor = 10, .final_div_factor = 100,
                                                           .anneal = TREK_ANNEAL_LINEAR, .three_phase = true }),
          { 0, 0.05 }, { 4, 0.30714285714285711 }, { 7, 0.5 }, { 10, 0.30714285714285716 }, { 14, 0.05 }, { 17, 0.0203 },
          { 19, 0.0005 });
    /* CyclicLR(o, 0.1, 0.6, 4, 6), mode triangular, triangular2, exp_range with gamma 0.95 */
    trek_cyclic_opts cyclic = { .step_size_up = 4, .step_size_down = 6, .gamma = 0.95 };
    CHECK(trek_cyclic_lr(0.1, 0.6, &cyclic), { 0, 0.1 }, { 3, 0.475 }, { 4, 0.6 }, { 7, 0.35 }, { 10, 0.1 },
          { 26, 0.43333333333333324 });
    cyclic.mode = TREK_CYCLIC_MODE_TRIANGULAR2;
    CHECK(trek_cyclic_lr(0.1, 0.6, &cyclic), { 3, 0.475 }, { 14, 0.35 }, { 26, 0.18333333333333332 });
    cyclic.mode = TREK_CYCLIC_MODE_EXP_RANGE;
    CHECK(trek_cyclic_lr(0.1, 0.6, &cyclic), { 3, 0.42151562500000006 }, { 14, 0.34383748955776472 },
          { 26, 0.18784003148858067 });
}

static void warmup_then_the_rest(void **state)
{
    trek_schedule rest = trek_cosine_lr(0.1, 20, 0.01), s = trek_warmup_lr(4, rest);
    for (int64_t step = 0; step < 4; step++)
        assert_true(fabs(trek_schedule_lr(&s, step) - 0.025 * (double)(step + 1)) < 1e-15);
    for (int64_t step = 0; step < 30; step++)
        assert_true(trek_schedule_lr(&s, step + 4) == trek_schedule_lr(&rest, step));
    /* the Transformer's: linear to 100, then with the inverse square root of the step */
    s = trek_warmup_lr(100, trek_inverse_sqrt_lr(1e-3, 100));
    CHECK(s, { 49, 5e-4 }, { 99, 1e-3 }, { 100, 1e-3 }, { 400, 5e-4 }, { 1600, 2.5e-4 });
    expect_refusal(trek_warmup_lr(4, s), "it already has a warm-up");
    expect_refusal(trek_warmup_lr(-1, rest), "steps");
    expect_refusal(trek_warmup_lr(4, (trek_schedule){ .kind = TREK_SCHEDULE_KIND_NONE }), "then: it is empty");
}

static void scaled_rates(void **state)
{
    trek_schedule rest = trek_warmup_lr(4, trek_cosine_lr(0.1, 20, 0.01)), scaled = trek_scaled_lr(trek_scaled_lr(rest, 2), 1.5);
    for (int64_t step = 0; step < 30; step++)
        assert_true(fabs(trek_schedule_lr(&scaled, step) - 3 * trek_schedule_lr(&rest, step)) < 1e-15);
    expect_refusal(trek_scaled_lr(rest, 0), "factor");
    expect_refusal(trek_scaled_lr(rest, -1), "factor");
    expect_refusal(trek_scaled_lr(rest, INFINITY), "factor");
    assert_int_equal(trek_scaled_lr((trek_schedule){ .kind = TREK_SCHEDULE_KIND_NONE }, 2).kind, TREK_SCHEDULE_KIND_NONE);
}

static void bad_numbers_are_named(void **state)
{
    expect_refusal(trek_constant_lr(-1.0), "lr");
    expect_refusal(trek_constant_lr(NAN), "lr");
    expect_refusal(trek_step_lr(0.1, 0, 0.5), "step_size");
    expect_refusal(trek_step_lr(0.1, 1, 0.0), "gamma");
    expect_refusal(trek_cosine_lr(0.1, 0, 0.0), "total");
    expect_refusal(trek_cosine_lr(0.1, 5, -0.1), "min");
    expect_refusal(trek_exponential_lr(0.1, -0.9), "gamma");
    expect_refusal(trek_polynomial_lr(0.1, 5, 0.0), "power");
    expect_refusal(trek_inverse_sqrt_lr(0.1, 0), "timescale");
    expect_refusal(trek_multistep_lr(0.1, (const int64_t[]){ -1 }, 1, 0.1), "milestone");
    expect_refusal(trek_multistep_lr(0.1, NULL, TREK_SCHEDULE_MILESTONES + 1, 0.1), "milestones");
    expect_refusal(trek_onecycle_lr(0.1, 0, NULL), "total");
    expect_refusal(trek_onecycle_lr(0.1, 5, &(trek_onecycle_opts){ .pct_start = 1.5 }), "pct_start");
    expect_refusal(trek_onecycle_lr(0.1, 5, &(trek_onecycle_opts){ .div_factor = -1 }), "div_factor");
    expect_refusal(trek_cyclic_lr(0.1, INFINITY, NULL), "max");
    expect_refusal(trek_cyclic_lr(0.1, 0.2, &(trek_cyclic_opts){ .step_size_up = -4 }), "step_size_up");
    trek_schedule s = trek_constant_lr(0.1);
    assert_true(isnan(trek_schedule_lr(&s, -1)));
    expect_error(TREK_ERR_ARGUMENT, "");
    assert_true(isnan(trek_schedule_lr(NULL, 0)));
    trek_error_clear();
    /* one step, or a rise shorter than a step, still gives numbers */
    s = trek_onecycle_lr(0.1, 1, NULL);
    for (int64_t step = 0; step < 3; step++)
        assert_true(isfinite(trek_schedule_lr(&s, step)));
}

static void plateau_equals_pytorch(void **state)
{
    /* ReduceLROnPlateau(o, factor=0.5, patience=1, cooldown=1, min_lr=0.03) */
    static const double metrics[] = { 1, .9, .95, .9, .9, .9, .9, .9, .9, .8, .9, .9, .9, .9 };
    static const double rates[] = { .1, .1, .1, .05, .05, .05, .03, .03, .03, .03, .03, .03, .03, .03 };
    trek_plateau p = trek_plateau_lr(&(trek_plateau_opts){ .lr = 0.1, .factor = 0.5, .patience = 1, .cooldown = 1,
                                                          .min_lr = 0.03 });
    for (size_t k = 0; k < sizeof metrics / sizeof *metrics; k++)
        assert_true(fabs(trek_plateau_observe(&p, metrics[k]) - rates[k]) < 1e-15);
    /* ReduceLROnPlateau(o, mode='max', threshold=0.1, threshold_mode='abs', patience=0) */
    static const double scores[] = { 1, 1.05, 1.2, 1.3, 1.31 };
    static const double then[] = { .1, .01, .01, .001, .001 };
    p = trek_plateau_lr(&(trek_plateau_opts){ .lr = 0.1, .maximize = true, .threshold = 0.1, .absolute = true,
                                             .patience = TREK_ZERO });
    for (size_t k = 0; k < sizeof scores / sizeof *scores; k++)
        assert_true(fabs(trek_plateau_observe(&p, scores[k]) - then[k]) < 1e-15);
    p = trek_plateau_lr(&(trek_plateau_opts){ .patience = TREK_ZERO });
    assert_true(trek_plateau_observe(&p, NAN) == 1e-4);
    p = trek_plateau_lr(NULL);
    assert_true(p.valid && p.lr == 1e-3 && p.opts.patience == 10);
    p = trek_plateau_lr(&(trek_plateau_opts){ .factor = 1.5 });
    expect_error(TREK_ERR_ARGUMENT, "");
    assert_true(isnan(trek_plateau_observe(&p, 1.0)));
    expect_error(TREK_ERR_ARGUMENT, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_pytorch), cmocka_unit_test(warmup_then_the_rest), cmocka_unit_test(scaled_rates),
        cmocka_unit_test(bad_numbers_are_named), cmocka_unit_test(plateau_equals_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
