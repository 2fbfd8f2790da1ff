/* SPDX-License-Identifier: Apache-2.0 */
/* Reads values from replicas, writes them back, and computes with them. */
#include "distributed/rounds/site_values.h"

#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/outer/fragments.h"
#include "distributed/rounds/averaging.h"
#include "tensor/dlpack.h"

/* --- the list ----------------------------------------------------------------------------------------- */

static void add_item(trek_values *v, const trek_arena_segment *g, int segment, int state, int64_t begin, int64_t count)
{
    v->items[v->n_items++] = (trek_value_item){ .segment = segment, .part = g->part, .state = state, .begin = g->offset + begin,
                                                .count = count, .at = v->n };
    v->n += count;
}

/* Adds a part of a segment, and the same part of each of its optimizer states. */
static void add_part(trek_values *v, const rank_replica *own, int segment, int64_t begin, int64_t count)
{
    const trek_arena_segment *g = &own->arena->segments[segment];
    add_item(v, g, segment, -1, begin, count);
    for (int state = 0; v->states && state < TREK_UPDATE_STATES; state++)
        if (own->optimizer->state[state][g->part] && own->optimizer->groups[g->group].kept & 1u << state)
            add_item(v, g, segment, state, begin, count);
}

/* Lists the elements of the averaged parameters one after another: where each segment begins and how many elements it
 * has. segment gets the index of each. Returns the number of segments. */
static int list_segments(trek_values *v, const trek_arena *arena, int64_t *offsets, int64_t *counts, int *segment)
{
    int n = 0;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *g = &arena->segments[k];
        if (!g->param->requires_grad || g->count == 0)
            continue;
        v->dtype = arena->parts[g->part].wide == TREK_F64 ? TREK_F64 : v->dtype;
        offsets[n] = n ? offsets[n - 1] + counts[n - 1] : 0;
        counts[n] = g->count;
        segment[n++] = k;
    }
    return n;
}

/* Makes the items. A segment that lies in several fragments has an item in each. */
static void list_items(trek_values *v, const rank_replica *own, int64_t *offsets, int64_t *counts, int *segment, int64_t *cuts)
{
    int n = list_segments(v, own->arena, offsets, counts, segment);
    trek_fragments_cut(offsets, counts, n, v->fragments, cuts);
    for (int f = 0, k = 0; f < v->fragments; f++) {
        v->bounds[f] = v->n;
        v->item_bounds[f] = v->n_items;
        for (int j = k; j < n && offsets[j] < cuts[f + 1]; j++) {
            int64_t end = offsets[j] + counts[j], from = offsets[j] > cuts[f] ? offsets[j] : cuts[f];
            end = end < cuts[f + 1] ? end : cuts[f + 1];
            if (end > from)
                add_part(v, own, segment[j], from - offsets[j], end - from);
            k = end == offsets[j] + counts[j] ? j + 1 : j;
        }
    }
    v->bounds[v->fragments] = v->n;
    v->item_bounds[v->fragments] = v->n_items;
}

static trek_status make_items(trek_values *v, const rank_replica *own)
{
    size_t n = (size_t)own->arena->n_segments + 1;
    v->items = trek_calloc((n + (size_t)v->fragments) * (TREK_UPDATE_STATES + 1), sizeof *v->items);
    v->bounds = trek_calloc((size_t)v->fragments + 1, sizeof *v->bounds);
    v->item_bounds = trek_calloc((size_t)v->fragments + 1, sizeof *v->item_bounds);
    int64_t *offsets = trek_calloc(n, sizeof *offsets), *counts = trek_calloc(n, sizeof *counts);
    int64_t *cuts = trek_calloc((size_t)v->fragments + 1, sizeof *cuts);
    int *segment = trek_calloc(n, sizeof *segment);
    if (trek_error_status() == TREK_OK)
        list_items(v, own, offsets, counts, segment, cuts);
    trek_free(offsets);
    trek_free(counts);
    trek_free(cuts);
    trek_free(segment);
    return trek_error_status();
}

trek_status trek_values_begin(trek_values *v, const trek_team *team, int sites, int fragments, bool states)
{
    trek_values_free(v);
    *v = (trek_values){ .dtype = TREK_F32, .sites = sites, .fragments = fragments, .states = states,
                        .n_segments = team->replicas[0].arena->n_segments };
    v->snapshots = trek_calloc((size_t)v->sites, sizeof *v->snapshots);
    v->snapshot_steps = trek_calloc((size_t)v->sites, sizeof *v->snapshot_steps);
    v->steps = trek_calloc((size_t)v->n_segments + 1, sizeof *v->steps);
    trek_status status = make_items(v, &team->replicas[0]);
    if (status != TREK_OK)
        return status;
    size_t bytes = (size_t)v->n * trek_values_size(v) + 1;
    v->center = v->room = trek_alloc(bytes);
    v->delta = trek_alloc(bytes);
    for (int r = 0; r < v->sites; r++) {
        v->snapshots[r] = trek_alloc(bytes);
        v->snapshot_steps[r] = trek_calloc((size_t)v->n_segments + 1, sizeof **v->snapshot_steps);
    }
    return trek_error_status();
}

void trek_values_move_center(trek_values *v, void *memory)
{
    memcpy(memory, v->center, (size_t)v->n * trek_values_size(v));
    trek_free(v->room);
    v->room = NULL;
    v->center = memory;
}

void trek_values_free(trek_values *v)
{
    for (int r = 0; r < v->sites && v->snapshots; r++)
        trek_free(v->snapshots[r]);
    for (int r = 0; r < v->sites && v->snapshot_steps; r++)
        trek_free(v->snapshot_steps[r]);
    trek_free(v->snapshots);
    trek_free(v->snapshot_steps);
    trek_free(v->steps);
    trek_free(v->items);
    trek_free(v->bounds);
    trek_free(v->item_bounds);
    trek_free(v->room);
    trek_free(v->delta);
    *v = (trek_values){ 0 };
}

/* --- a replica's ----------------------------------------------------------------------------------------- */

/* Returns a view of the item's own memory, in the current scope. */
static trek_var *view_of(const rank_replica *own, const trek_value_item *item)
{
    return trek_average_view(trek_average_source(own, item->part, item->state), item->begin, item->count);
}

static bool has_state(const rank_replica *own, const trek_value_item *item)
{
    return item->state < 0 || own->optimizer->written[item->segment] & 1u << item->state;
}

static trek_status read_item(const trek_values *v, const rank_replica *own, const trek_value_item *item, void *to)
{
    size_t bytes = (size_t)item->count * trek_values_size(v);
    if (!has_state(own, item)) {
        memset(to, 0, bytes);
        return TREK_OK;
    }
    trek_var *from = view_of(own, item);
    return from ? trek_tensor_to_host(from->data, v->dtype, to, bytes) : trek_error_status();
}

static trek_status write_item(const trek_values *v, const rank_replica *own, const trek_value_item *item, void *from)
{
    const trek_arena_part *part = &own->arena->parts[item->part];
    trek_tensor *host = trek_tensor_wrap(from, trek_shape_make(&item->count, 1), v->dtype, NULL, NULL);
    trek_var *to = view_of(own, item);
    trek_status status = host && to ? trek_tensor_copy_from(to->data, host) : trek_error_status();
    trek_tensor_release(host);
    if (status == TREK_OK && item->state < 0) {
        if (trek_arena_part_is_low(part))
            status = trek_average_round(own, item->part, item->begin, item->count);
        trek_tensor_bump(own->arena->segments[item->segment].param->data);
    }
    return status;
}

/* Called for each item of fragments [first, end), in its own scope and without a tape. */
typedef trek_status (*item_fn)(const trek_values *v, const rank_replica *own, const trek_value_item *item, int site, void *arg);

static trek_status each_item(const trek_values *v, const rank_replica *own, int site, int first, int end, item_fn fn, void *arg)
{
    trek_status status = TREK_OK;
    trek_no_grad_begin();
    for (int k = v->item_bounds[first]; k < v->item_bounds[end] && status == TREK_OK; k++) {
        trek_scope scope = trek_scope_begin();
        status = scope.depth ? fn(v, own, &v->items[k], site, arg) : trek_error_status();
        trek_scope_end(scope);
    }
    trek_no_grad_end();
    return status;
}

static trek_status read_into(const trek_values *v, const rank_replica *own, const trek_value_item *item, int site, void *arg)
{
    (void)site;
    return read_item(v, own, item, trek_values_at(v, arg, item->at));
}

/* Brings master parameters and step counts to where they can be read. */
static trek_status settle(const rank_replica *own)
{
    trek_status status = trek_arena_refresh_masters(own->arena);
    return status == TREK_OK ? trek_device_update_read(own->optimizer) : status;
}

trek_status trek_values_read(const trek_values *v, const trek_team *team, int site, int fragment)
{
    const rank_replica *own = &team->replicas[site];
    trek_status status = settle(own);
    for (int k = 0; k < v->n_segments && status == TREK_OK; k++)
        v->snapshot_steps[site][k] = own->arena->segments[k].steps;
    return status == TREK_OK ? each_item(v, own, site, fragment, fragment + 1, read_into, v->snapshots[site]) : status;
}

void trek_values_center(const trek_values *v)
{
    memcpy(v->center, v->snapshots[0], (size_t)v->n * trek_values_size(v));
    memcpy(v->steps, v->snapshot_steps[0], (size_t)v->n_segments * sizeof *v->steps);
}

/* --- arithmetic --------------------------------------------------------------------------------------------- */

/* A state that is not negative here and in the center, such as a mean of squares, must not become negative. */
#define ARITHMETIC(T, name)                                                                                                      \
    static void merge_##name(T *now, const T *snapshot, const T *center, int64_t n, bool state)                                  \
    {                                                                                                                            \
        for (int64_t i = 0; i < n; i++) {                                                                                        \
            T both = now[i] + (center[i] - snapshot[i]);                                                                         \
            both = state && both < 0 && now[i] >= 0 && center[i] >= 0 ? 0 : both;                                                \
            now[i] = now[i] == snapshot[i] ? center[i] : both;                                                                   \
        }                                                                                                                        \
    }                                                                                                                            \
    static void add_difference_##name(T *delta, const T *snapshot, const T *center, double weight, bool first, int64_t n)        \
    {                                                                                                                            \
        T w = (T)weight;                                                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                                                        \
            T own = w * (snapshot[i] - center[i]);                                                                               \
            delta[i] = first ? own : delta[i] + own;                                                                             \
        }                                                                                                                        \
    }                                                                                                                            \
    static void advance_##name(T *center, const T *delta, int64_t n)                                                             \
    {                                                                                                                            \
        for (int64_t i = 0; i < n; i++)                                                                                          \
            center[i] += delta[i];                                                                                               \
    }                                                                                                                            \
    static void measure_##name(const T *snapshot, const T *center, int64_t n, double sums[2])                                    \
    {                                                                                                                            \
        for (int64_t i = 0; i < n; i++) {                                                                                        \
            double d = (double)snapshot[i] - (double)center[i];                                                                  \
            sums[0] += d * d;                                                                                                    \
            sums[1] += (double)center[i] * (double)center[i];                                                                    \
        }                                                                                                                        \
    }

ARITHMETIC(float, f32)
ARITHMETIC(double, f64)

void trek_values_difference(const trek_values *v, int fragment, const double *weights)
{
    int64_t at = v->bounds[fragment], n = v->bounds[fragment + 1] - at;
    void *delta = trek_values_at(v, v->delta, at), *center = trek_values_at(v, v->center, at);
    bool first = true;
    for (int r = 0; r < v->sites; r++) {
        if (!(weights[r] > 0))
            continue;
        void *snapshot = trek_values_at(v, v->snapshots[r], at);
        if (v->dtype == TREK_F64)
            add_difference_f64(delta, snapshot, center, weights[r], first, n);
        else
            add_difference_f32(delta, snapshot, center, weights[r], first, n);
        first = false;
    }
    if (first)
        memset(delta, 0, (size_t)n * trek_values_size(v));
}

void trek_values_advance(const trek_values *v, int fragment)
{
    int64_t at = v->bounds[fragment], n = v->bounds[fragment + 1] - at;
    if (v->dtype == TREK_F64)
        advance_f64(trek_values_at(v, v->center, at), trek_values_at(v, v->delta, at), n);
    else
        advance_f32(trek_values_at(v, v->center, at), trek_values_at(v, v->delta, at), n);
}

double trek_values_drift(const trek_values *v, int fragment, int site)
{
    double sums[2] = { 0, 0 };
    for (int k = v->item_bounds[fragment]; k < v->item_bounds[fragment + 1]; k++) {
        const trek_value_item *item = &v->items[k];
        void *snapshot = trek_values_at(v, v->snapshots[site], item->at), *center = trek_values_at(v, v->center, item->at);
        if (item->state >= 0)
            continue;
        if (v->dtype == TREK_F64)
            measure_f64(snapshot, center, item->count, sums);
        else
            measure_f32(snapshot, center, item->count, sums);
    }
    return sums[1] > 0 ? sqrt(sums[0] / sums[1]) : 0;
}

void trek_values_most_steps(const trek_values *v, int fragment, const double *weights)
{
    for (int k = v->item_bounds[fragment]; k < v->item_bounds[fragment + 1]; k++)
        for (int r = 0, segment = v->items[k].segment; r < v->sites; r++)
            if (weights[r] > 0 && v->snapshot_steps[r][segment] > v->steps[segment])
                v->steps[segment] = v->snapshot_steps[r][segment];
}

/* --- taking averages in ---------------------------------------------------------------------------------------- */

/* Sets how many updates the item's states have had. */
static void set_steps(const trek_values *v, const rank_replica *own, const trek_value_item *item, int64_t steps)
{
    trek_arena_segment *g = &own->arena->segments[item->segment];
    if (item->state >= 0 || !v->states || steps == g->steps)
        return;
    g->steps = steps;
    own->optimizer->written[item->segment] |= own->optimizer->groups[g->group].kept;
    own->optimizer->stale = true;
    trek_device_update_forget(own->optimizer);
}

/* Takes one item in. arg is scratch memory for the largest item. */
static trek_status take_item(const trek_values *v, const rank_replica *own, const trek_value_item *item, int site, void *arg)
{
    void *snapshot = trek_values_at(v, v->snapshots[site], item->at), *center = trek_values_at(v, v->center, item->at);
    trek_status status = read_item(v, own, item, arg);
    if (v->dtype == TREK_F64)
        merge_f64(arg, snapshot, center, item->count, item->state >= 0);
    else
        merge_f32(arg, snapshot, center, item->count, item->state >= 0);
    return status == TREK_OK ? write_item(v, own, item, arg) : status;
}

static trek_status take_steps(const trek_values *v, const rank_replica *own, const trek_value_item *item, int site, void *arg)
{
    (void)arg;
    int64_t since = own->arena->segments[item->segment].steps - v->snapshot_steps[site][item->segment];
    set_steps(v, own, item, v->steps[item->segment] + since);
    return TREK_OK;
}

static trek_status take_whole(const trek_values *v, const rank_replica *own, const trek_value_item *item, int site, void *arg)
{
    (void)site, (void)arg;
    set_steps(v, own, item, v->steps[item->segment]);
    return write_item(v, own, item, trek_values_at(v, v->center, item->at));
}

/* Takes one fragment into the replica of a rank that is the site or belongs to it. */
static trek_status take_fragment(const trek_values *v, const rank_replica *own, int site, int fragment)
{
    int64_t most = 0;
    for (int k = v->item_bounds[fragment]; k < v->item_bounds[fragment + 1]; k++)
        most = v->items[k].count > most ? v->items[k].count : most;
    void *room = trek_alloc((size_t)most * trek_values_size(v) + 1);
    trek_status status = room ? settle(own) : trek_error_status();
    if (status == TREK_OK)
        status = each_item(v, own, site, fragment, fragment + 1, take_item, room);
    if (status == TREK_OK) /* only then, because readers look for data that have been written */
        status = each_item(v, own, site, fragment, fragment + 1, take_steps, NULL);
    trek_free(room);
    trek_arena_note_masters(own->arena);
    return status;
}

static trek_status take_whole_of(const trek_values *v, const rank_replica *own, int site)
{
    trek_status status = settle(own);
    if (status == TREK_OK)
        status = each_item(v, own, site, 0, v->fragments, take_whole, NULL);
    trek_arena_note_masters(own->arena);
    return status;
}

typedef struct take_call {
    const trek_values *values;
    const trek_team *team;
    int site, fragment;      /* fragment -1: takes all fragments, regardless of the site's own values */
} take_call;

static trek_status take_rank(int rank, void *arg)
{
    const take_call *c = arg;
    const rank_replica *own = &c->team->replicas[rank];
    return c->fragment < 0 ? take_whole_of(c->values, own, c->site) : take_fragment(c->values, own, c->site, c->fragment);
}

/* Lets every rank of a site take the values in. All come to the same bits, because they begin with the same values
 * and do the same. */
static trek_status take(take_call c)
{
    const trek_team *team = c.team;
    if (c.values->sites == team->local_ranks)
        return take_rank(c.site, &c);
    if (!team->shared)
        return trek_ranks_call(team->ranks, take_rank, &c);
    trek_status status = take_rank(0, &c);
    for (int r = 1; r < team->local_ranks; r++)
        for (int k = 0; k < team->replicas[r].model->n_params; k++)
            trek_tensor_bump(team->replicas[r].model->params[k]->data); /* the ranks share rank 0's memory */
    return status;
}

trek_status trek_values_take(const trek_values *v, const trek_team *team, int site, int fragment)
{
    return take((take_call){ v, team, site, fragment });
}

trek_status trek_values_take_all(const trek_values *v, const trek_team *team, int site)
{
    return take((take_call){ v, team, site, -1 });
}
