/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/comm/groups.h"

#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

enum { MOST = 16, COUNT = 3000 };

/* The ranks of the first communicator that make up a group, in its order. */
typedef struct list {
    int n, ranks[MOST];
} list;

/* What rank r draws: the same number wherever it is asked for. */
static uint32_t draw(uint32_t seed, int r, int what)
{
    uint32_t x = seed * 2654435761u + (uint32_t)r * 40503u + (uint32_t)what * 97u;
    for (int i = 0; i < 3; i++)
        x = (x ^ x >> 15) * 2246822519u + 374761393u;
    return x ^ x >> 13;
}

static int color_of(uint32_t seed, int r) { return (int)(draw(seed, r, 0) % 4) - 1; } /* -1, 0, 1, 2 */
static int key_of(uint32_t seed, int r) { return (int)(draw(seed, r, 1) % 5) - 2; }

/* Insertion in order of keys, which leaves equal ones in the order of their ranks in `all`. */
static list expected(const list *all, uint32_t seed, int color)
{
    list group = { 0 };
    for (int r = 0; r < all->n; r++) {
        int at = group.n;
        if (color_of(seed, all->ranks[r]) != color)
            continue;
        while (at > 0 && key_of(seed, group.ranks[at - 1]) > key_of(seed, all->ranks[r])) {
            group.ranks[at] = group.ranks[at - 1];
            at--;
        }
        group.ranks[at] = all->ranks[r];
        group.n++;
    }
    return group;
}

static bool wrong(const char *what, int me)
{
    fprintf(stderr, "rank %d: %s; %s\n", me, what, trek_error());
    return false;
}

static trek_tensor *filled(int64_t count, double value)
{
    trek_tensor *tensor = trek_tensor_zeros(trek_dims(count), TREK_F64, trek_cpu(0));
    for (int64_t i = 0; tensor && i < count; i++)
        ((double *)trek_tensor_data(tensor))[i] = value + (double)(i % 7);
    return tensor;
}

static bool holds(const trek_tensor *tensor, int64_t from, int64_t count, double value, double times)
{
    const double *x = trek_tensor_data((trek_tensor *)tensor);
    bool good = true;
    for (int64_t i = 0; i < count; i++)
        good = good && x[from + i] == value + times * (double)(i % 7);
    return good;
}

/* Sums of whole numbers are exact in any order. */
static bool collectives_are_right(trek_comm *comm, const list *group, int me)
{
    int rank = trek_comm_rank(comm), n = group->n;
    double sum = 0, most = me;
    for (int r = 0; r < n; r++)
        sum += group->ranks[r];
    trek_tensor *part = filled(COUNT, me), *all = filled((int64_t)COUNT * n, 0), *one = filled(COUNT, me);
    bool good = trek_comm_all_gather(comm, part, all) == TREK_OK;
    for (int r = 0; good && r < n; r++)
        good = holds(all, (int64_t)r * COUNT, COUNT, group->ranks[r], 1);
    good = (good || wrong("all_gather", me)) &&
           ((trek_comm_reduce_scatter(comm, all, part, TREK_REDUCTION_SUM) == TREK_OK &&
             holds(part, 0, COUNT, n * group->ranks[rank], n)) ||
            wrong("reduce_scatter", me));
    good = good && ((trek_comm_all_reduce(comm, one, TREK_REDUCTION_SUM) == TREK_OK && holds(one, 0, COUNT, sum, n)) ||
                    wrong("all_reduce", me));
    trek_tensor_release(one);
    one = filled(COUNT, me);
    good = good && ((trek_comm_broadcast(comm, one, n - 1) == TREK_OK && holds(one, 0, COUNT, group->ranks[n - 1], 1)) ||
                    wrong("broadcast", me));
    good = good && trek_comm_barrier(comm) == TREK_OK && trek_comm_all_reduce_scalar(comm, &most, TREK_REDUCTION_MAX) == TREK_OK;
    for (int r = 0; good && r < n; r++)
        good = most >= group->ranks[r];
    trek_tensor_release(part);
    trek_tensor_release(all);
    trek_tensor_release(one);
    return good || wrong("barrier", me);
}

/* Whether a rank without a colour has none, and others are in the group that the lists say, at their places. */
static bool is_group(const trek_comm *comm, const list *group, int color, int me)
{
    if (color < 0 || !comm)
        return color < 0 && !comm && trek_error_status() == TREK_OK ? true : wrong("a group, or none", me);
    int rank = trek_comm_rank(comm);
    return (trek_comm_world_size(comm) == group->n && rank < group->n && group->ranks[rank] == me) || wrong("the place", me);
}

static bool round_is_right(trek_comm *comm, const list *all, uint32_t seed, int me)
{
    int color = color_of(seed, me), inner_color = color_of(seed + 1, me);
    list group = expected(all, seed, color), inner_group = { 0 };
    trek_comm *part = trek_comm_split(comm, color, key_of(seed, me)), *inner = NULL;
    bool good = is_group(part, &group, color, me);
    for (int k = 0; good && part && k <= 2 * color; k++) /* in some groups more than in others */
        good = collectives_are_right(part, &group, me);
    if (part && good) {
        inner_group = expected(&group, seed + 1, inner_color);
        inner = trek_comm_split(part, inner_color, key_of(seed + 1, me));
        good = is_group(inner, &inner_group, inner_color, me);
    }
    if (good && inner)
        good = collectives_are_right(inner, &inner_group, me);
    if (good && part)
        good = collectives_are_right(part, &group, me);
    good = good && (trek_comm_barrier(comm) == TREK_OK || wrong("the first communicator", me));
    bool outer_first = draw(seed, me, 2) & 1;
    trek_comm_free(outer_first ? &part : &inner);
    trek_comm_free(outer_first ? &inner : &part);
    return good;
}

bool groups_are_right(trek_comm *comm, uint32_t seed, int rounds)
{
    int me = trek_comm_rank(comm);
    list all = { .n = trek_comm_world_size(comm) };
    bool good = all.n <= MOST;
    for (int r = 0; good && r < all.n; r++)
        all.ranks[r] = r;
    for (int k = 0; good && k < rounds; k++)
        good = round_is_right(comm, &all, seed + 10u * (uint32_t)k, me) && collectives_are_right(comm, &all, me);
    return good;
}
