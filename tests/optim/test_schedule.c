/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules made of others, and options. tests/differential/schedules.py compares each schedule with torch.optim.lr_scheduler. */
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

static void plateau_options(void **state)
{
    trek_plateau p = trek_plateau_lr(&(trek_plateau_opts){ .patience = TREK_ZERO });
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
        cmocka_unit_test(warmup_then_the_rest), cmocka_unit_test(scaled_rates),
        cmocka_unit_test(bad_numbers_are_named), cmocka_unit_test(plateau_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
