/* SPDX-License-Identifier: Apache-2.0 */
/* optim/: arenas: what moves into them, what is shared, what does not fit; padding, and updates slice by slice. */
#include <math.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"
#include "tests/optim/model.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- arenas ---------------------------------------------------------------------------------------------- */

static void arena_moves_values_and_gradients(void **state)
{
    model m;
    model_begin(&m, TREK_F32);
    trek_tensor *same = trek_var_data(m.vars[1]);
    double grad[BIG], have[BIG];
    for (int i = 0; i < BIG; i++)
        grad[i] = (double)(float)number();
    set_grad(m.vars[3], grad);
    trek_arena *arena = trek_arena_new(m.params);
    assert_non_null(arena);
    assert_ptr_equal(trek_var_data(m.vars[1]), same);
    check_values(&m, 0.0);
    read_tensor(trek_var_data(trek_var_grad(m.vars[3])), have);
    assert_memory_equal(have, grad, sizeof(double) * BIG);
    assert_int_equal(arena->n_parts, 1);
    assert_int_equal(arena->parts[0].count, 256 + 512 + 256 + 256 + 256);
    const char *base = arena->parts[0].params->data;
    for (int k = 0; k < MODEL; k++) {
        const trek_arena_segment *s = &arena->segments[trek_arena_find(arena, m.vars[k])];
        assert_int_equal(s->index, k);
        assert_int_equal(s->offset % TREK_ARENA_SLOT, 0);
        assert_ptr_equal(trek_var_data(m.vars[k])->data, base + s->offset * (int64_t)sizeof(float));
    }
    assert_int_equal(trek_arena_find(arena, m.vars[MODEL - 1]), 0); /* last registered, first in memory */
    REFUSED(trek_arena_new(m.params), TREK_ERR_STATE, "a.weight");
    trek_arena_free(&arena);
    check_values(&m, 0.0);
    assert_null(trek_var_grad(m.vars[0]));
    assert_non_null(trek_var_grad(m.vars[3]));
    arena = trek_arena_new(m.params); /* and again */
    assert_non_null(arena);
    check_values(&m, 0.0);
    trek_arena_zero_grads(arena);
    read_tensor(arena->parts[0].grads, (double[1536]){ 0 });
    bool finite;
    double sum;
    trek_arena_sum_squares(arena, &sum, &finite);
    assert_true(sum == 0.0 && finite);
    trek_arena_free(&arena);
    model_end(&m);
}

/* Parameters are not kept twice: where they were goes back to the system, not into the cache. */
static void arena_gives_the_old_memory_back(void **state)
{
    enum { COUNT = 3000000 };
    if (!test_on_cpu())
        skip();
    trek_tensor *values = trek_tensor_full(trek_dims(COUNT), 0.5, TREK_F32, trek_cpu(0));
    trek_var *var = trek_var_new(values, true);
    trek_params *params = trek_params_new();
    assert_int_equal(trek_params_add(params, "weight", var), TREK_OK);
    trek_tensor_release(values);
    trek_memory_stats before = trek_memory_usage(trek_cpu(0));
    trek_arena *arena = trek_arena_new(params);
    assert_non_null(arena);
    trek_memory_stats after = trek_memory_usage(trek_cpu(0));
    assert_true(after.reserved - before.reserved < (int64_t)(1.3 * COUNT * sizeof(float))); /* the gradients */
    assert_true(((const float *)trek_tensor_data(trek_var_data(var)))[COUNT - 1] == 0.5f);
    trek_arena_free(&arena);
    trek_params_free(&params);
    trek_var_release(var);
}

static void arena_shares_data_not_gradients(void **state)
{
    model m, replica;
    model_begin(&m, TREK_F32);
    model_begin(&replica, TREK_F32);
    trek_arena *owner = trek_arena_new(m.params);
    trek_arena *arena = trek_arena_new_sharing(replica.params, owner);
    assert_non_null(arena);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *optimizer = trek_optimizer_new_over(spec, owner);
    feed(&m, 31, &spec);
    double ones[BIG];
    for (int i = 0; i < BIG; i++)
        ones[i] = 1.0;
    set_grad(replica.vars[0], ones);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    uint32_t before = trek_var_data(replica.vars[0])->storage->version;
    trek_arena_bump(arena, owner);
    assert_true(trek_var_data(replica.vars[0])->storage->version != before);
    memcpy(replica.values, m.values, sizeof m.values);
    check_values(&m, 1e-6);
    check_values(&replica, 1e-6);
    double sum;
    bool finite;
    trek_arena_sum_squares(arena, &sum, &finite);
    assert_true(sum == (double)counts[0]);
    trek_optimizer_free(&optimizer);
    trek_arena_free(&owner);
    trek_arena_free(&arena);
    check_values(&replica, 1e-6);
    model_end(&m);
    model_end(&replica);
}

static void arena_refuses_what_does_not_fit(void **state)
{
    model m, replica;
    model_begin(&m, TREK_F32);
    model_begin(&replica, TREK_F64);
    trek_arena *owner = trek_arena_new(m.params);
    REFUSED(trek_arena_new_sharing(replica.params, owner), TREK_ERR_ARGUMENT, "'c'");
    check_values(&replica, 0.0);
    trek_var *whole = new_var((double[]){ 1, 2 }, 2, TREK_I64, false);
    trek_params_add(replica.params, "whole", whole);
    REFUSED(trek_arena_new(replica.params), TREK_ERR_DTYPE, "whole");
    trek_var_release(whole);
    trek_arena_free(&owner);
    model_end(&m);
    model_end(&replica);
}

/* --- formulas -------------------------------------------------------------------------------------------- */

static void padding_stays_zero(void **state)
{
    model m;
    model_begin(&m, TREK_F32);
    trek_optimizer_spec spec = trek_adam(&(trek_adam_opts){ .lr = 0.1, .eps = TREK_ZERO });
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    trek_optimizer_spec plain = trek_adam(&(trek_adam_opts){ .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999 });
    feed(&m, 31, &plain);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    check_values(&m, 1e-6);
    const trek_arena *arena = optimizer->arena;
    double *values = test_read(arena->parts[0].params);
    assert_non_null(values);
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *s = &arena->segments[k];
        int64_t end = k + 1 < arena->n_segments ? s[1].offset : arena->parts[0].count;
        for (int64_t i = s->offset + s->count; i < end; i++)
            assert_true(values[i] == 0.0);
    }
    free(values);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void slices_give_the_same_bits(void **state)
{
    model whole, sliced;
    random_state = 7;
    model_begin(&whole, TREK_F32);
    random_state = 7;
    model_begin(&sliced, TREK_F32);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *a = trek_optimizer_new(spec, whole.params), *b = trek_optimizer_new(spec, sliced.params);
    trek_arena *arena = b->arena;
    int64_t count = arena->parts[0].count;
    trek_tensor *other = trek_tensor_clone(arena->parts[0].grads);
    for (uint64_t step = 0; step < 3; step++) {
        random_state = 100 + step;
        feed(&whole, 29, &spec);
        trek_optimizer_step_with(a, &(trek_step_opts){ .factor = 0.5 });
        random_state = 100 + step;
        feed(&sliced, 29, &spec);
        assert_int_equal(trek_tensor_copy_from(other, arena->parts[0].grads), TREK_OK);
        trek_arena_mark_used(arena);
        assert_int_equal(trek_optimizer_prepare(b), TREK_OK);
        for (int64_t at = 0, next; at < count; at = next) {
            next = at + 37 < count ? at + 37 : count;
            if (at % 2)
                trek_optimizer_apply_range(b, 0, at, next, 0.5, 0, true);
            else
                trek_optimizer_apply_range_from(b, 0, at, next, other->data, 0.5, 0, true);
        }
        trek_optimizer_commit(b);
        for (int k = 0; k < MODEL; k++)
            assert_true(test_same_bits(trek_var_data(whole.vars[k]), trek_var_data(sliced.vars[k])));
        trek_arena_zero_grads(a->arena);
        trek_arena_zero_grads(arena);
    }
    trek_tensor_release(other);
    trek_optimizer_free(&a);
    trek_optimizer_free(&b);
    model_end(&whole);
    model_end(&sliced);
}

/* The least that the largest of n consecutive groups can have. */
static double least_of_most(const double *weights, int n, int groups)
{
    double most[64];
    most[0] = 0;
    for (int k = 0; k < n; k++)
        most[k + 1] = most[k] + weights[k];
    for (int g = 1; g < groups; g++)
        for (int end = n; end > 0; end--) {
            double sum = 0;
            for (int k = end - 1; k >= 0; k--) {
                sum += weights[k];
                double larger = sum > most[k] ? sum : most[k];
                most[end] = larger < most[end] ? larger : most[end];
            }
        }
    return most[n];
}

/* Owners of whole parameters: some without elements, one with more than all others, more ranks than parameters. */
static void owners_are_balanced(void **state)
{
    for (int draw = 0; draw < 300; draw++) {
        int n = 1 + (int)(fabs(number()) * 30), sharers = 2 + draw % 7;
        trek_arena_segment segments[32] = { 0 };
        double work[32], weights[32], elements = 0, all_work = 0, most = 0;
        n = n > 32 ? 32 : n;
        for (int k = 0; k < n; k++) {
            segments[k].count = fabs(number()) < 0.2 ? 0 : (int64_t)(fabs(number()) * 1000);
            work[k] = draw & 1 ? fabs(number()) * (double)segments[k].count : 0;
        }
        if (draw % 3 == 0)
            segments[draw % n].count = 100000;
        for (int k = 0; k < n; k++) {
            elements += (double)segments[k].count;
            all_work += work[k];
        }
        for (int k = 0; k < n; k++)
            weights[k] = (elements > 0 ? (double)segments[k].count / elements : 0) + (all_work > 0 ? work[k] / all_work : 0);
        int *owner = trek_arena_owners(&(trek_arena){ .n_segments = n, .segments = segments, .sharers = sharers },
                                       draw & 1 ? work : NULL);
        assert_non_null(owner);
        double has = 0;
        for (int k = 0; k < n; k++) {
            assert_true(owner[k] >= (k ? owner[k - 1] : 0) && owner[k] <= (k ? owner[k - 1] + 1 : 0) && owner[k] < sharers);
            has = (k && owner[k] == owner[k - 1] ? has : 0) + weights[k];
            most = has > most ? has : most;
        }
        assert_true(most <= least_of_most(weights, n, sharers) + 1e-5);
        trek_free(owner);
    }
}

/* Weights of sharers that keep everything twice, as they are drawn: some 0, some larger than all others together. */
static int draw_weights(double *weights)
{
    int n = 2 + (int)((number() + 1) * 4), active = 0;
    for (int r = 0; r < n; r++) {
        double drawn = number() + 1;
        weights[r] = drawn < 0.3 ? 0 : drawn > 1.8 ? 1000 * drawn : drawn * drawn;
        active += weights[r] > 0;
    }
    weights[0] = active == 0 ? 1 : weights[0];
    return n;
}

/* Every unit has two keepers, or one if only one sharer has a weight; and each sharer keeps what its weight says, to a unit. */
static void check_keepers(const trek_arena *arena, const double *weights, int n)
{
    int64_t units = arena->parts[0].count / TREK_ARENA_SLOT, kept[64] = { 0 };
    double all = 0, most = 0;
    int active = 0;
    for (int r = 0; r < n; r++) {
        active += weights[r] > 0;
        all += weights[r];
        most = weights[r] > most ? weights[r] : most;
    }
    most = most < all - most || active == 1 ? most : all - most;
    for (all = 0, n = 0; n < arena->sharers; n++)
        all += weights[n] < most ? weights[n] : most;
    for (int64_t u = 0; u < units; u++) {
        trek_arena_keepers keepers = trek_arena_keepers_at(arena, 0, u * TREK_ARENA_SLOT);
        assert_true(keepers.end > u * TREK_ARENA_SLOT && keepers.end <= units * TREK_ARENA_SLOT);
        assert_true(weights[keepers.of[0]] > 0 && keepers.of[0] != keepers.of[1]);
        assert_true(active == 1 ? keepers.of[1] == -1 : weights[keepers.of[1]] > 0);
        for (int k = 0; k < 2 && keepers.of[k] >= 0; k++)
            kept[keepers.of[k]]++;
    }
    for (int r = 0; r < n; r++) {
        double share = (active > 1 ? 2 : 1) * (double)units * (weights[r] < most ? weights[r] : most) / all;
        assert_true(fabs((double)kept[r] - share) <= 1.1);
    }
}

static void everything_has_two_keepers(void **state)
{
    model m;
    model_begin(&m, TREK_F32);
    trek_arena *arena = trek_arena_new_twice(m.params, 3, NULL, NULL);
    assert_non_null(arena);
    assert_int_equal(arena->parts[0].count, 256 + 512 + 256 + 256 + 256); /* for any number of sharers */
    for (int draw = 0; draw < 2000; draw++) {
        double weights[16], *before;
        int n = draw_weights(weights);
        assert_int_equal(trek_arena_set_sharers(arena, n, weights, &before), TREK_OK);
        trek_free(before);
        check_keepers(arena, weights, n);
        int *owner = trek_arena_keepers_of_segments(arena), active = 0;
        assert_non_null(owner);
        for (int r = 0; r < n; r++)
            active += weights[r] > 0;
        for (int k = 0; k < arena->n_segments; k++) {
            int second = owner[arena->n_segments + k];
            assert_true(weights[owner[k]] > 0 && second != owner[k]);
            assert_true(active == 1 ? second == -1 : weights[second] > 0);
        }
        trek_free(owner);
    }
    trek_arena_free(&arena);
    model_end(&m);
}

int main(void)
{
    if (trek_allocator_set(&(trek_allocator){ .allocate = test_allocate, .release = test_release }) != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_are_balanced), cmocka_unit_test(arena_moves_values_and_gradients),
        cmocka_unit_test(arena_gives_the_old_memory_back), cmocka_unit_test(arena_shares_data_not_gradients),
        cmocka_unit_test(arena_refuses_what_does_not_fit), cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(slices_give_the_same_bits), cmocka_unit_test(everything_has_two_keepers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
