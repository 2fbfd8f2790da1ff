/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/pass/kept.h"

#include "autograd/var_internal.h"
#include "distributed/system/system.h"
#include "graph/graph_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/recompute_internal.h"
#include "nn/walk.h"
#include "nn/ways.h"
#include "tensor/devices.h"
#include "tensor/memory_internal.h"
#include "tensor/try_internal.h"

/* Stretches of a sequential with more children than this have at most this number of them. */
enum { LONGEST = 64 };

/* --- observing ------------------------------------------------------------------------------ */

static int64_t in_use(const trek_kept *kept)
{
    return kept->account ? trek_memory_account_used(kept->account) : trek_memory_usage(kept->device).allocated;
}

static int64_t now(const trek_kept *kept)
{
    if (kept->device.type != TREK_CPU)
        trek_device_sync(kept->device);
    return trek_now_ns();
}

/* What runs within a recomputation keeps nothing. */
static bool counts(const trek_kept *kept) { return trek_runs_again == 0 && kept->status == TREK_OK; }

static void add_point(trek_kept *kept)
{
    kept->status = trek_array_grow(&kept->held, &kept->cap_points, kept->n_points + 1, sizeof *kept->held);
    if (kept->status == TREK_OK)
        kept->held[kept->n_points++] = in_use(kept);
}

static void begin(trek_module *module, trek_var *const *inputs, int n, void *arg)
{
    trek_kept *kept = arg;
    if (!counts(kept))
        return;
    kept->status = trek_array_grow(&kept->runs, &kept->cap_runs, kept->n_runs + 1, sizeof *kept->runs);
    if (kept->status != TREK_OK)
        return;
    if (kept->here < 0 && kept->n_runs > 0) /* instead of that after the last run */
        kept->n_points--;
    kept->runs[kept->n_runs] = (trek_kept_run){ .module = module, .parent = kept->here, .begin = kept->n_points,
                                                .may = trek_module_may_recompute(module, inputs, n) };
    add_point(kept);
    kept->here = kept->n_runs++;
    kept->runs[kept->here].begin_ns = now(kept);
}

static void end(trek_module *module, trek_var *result, void *arg)
{
    (void)module;
    trek_kept *kept = arg;
    if (!counts(kept) || kept->here < 0)
        return;
    trek_kept_run *run = &kept->runs[kept->here];
    run->ns = now(kept) - run->begin_ns;
    run->end = kept->n_points;
    run->result = result ? result->data->numel * (int64_t)trek_dtype_size((trek_dtype)result->data->dtype) : 0;
    kept->here = run->parent;
    if (kept->here < 0)
        add_point(kept);
}

void trek_kept_begin(trek_kept *kept, trek_device device, const trek_memory_account *account)
{
    *kept = (trek_kept){ .device = device, .account = account, .here = -1 };
    kept->watch = (trek_module_watch){ .begin = begin, .end = end, .arg = kept, .fuses = true };
}

void trek_kept_clear(trek_kept *kept)
{
    trek_free(kept->runs);
    trek_free(kept->held);
    trek_free(kept->segments);
    trek_free(kept->line);
    *kept = (trek_kept){ .here = -1 };
}

/* --- segments ------------------------------------------------------------------------------- */

static trek_status append(trek_kept *kept, trek_kept_segment segment, trek_segment on_line)
{
    TRY(trek_array_grow(&kept->segments, &kept->cap_segments, kept->n_segments + 1, sizeof *kept->segments));
    TRY(trek_array_grow(&kept->line, &kept->cap_line, kept->n_segments + 1, sizeof *kept->line));
    kept->segments[kept->n_segments] = segment;
    kept->line[kept->n_segments++] = on_line;
    return TREK_OK;
}

/* Turns a segment that is recomputed into one that is moved. On the device remain its result, and for a moment the values that
 * are used or on their way, each of which is at most as large as the largest step between two points. Returns false if there is
 * nothing that is worth it. */
static bool move_segment(const trek_kept *kept, const trek_moving *moving, trek_segment *segment)
{
    int64_t most = 0, largest = 0, bytes = kept->held[segment->end] - kept->held[segment->begin] - segment->result;
    for (int p = segment->begin + 1; p <= segment->end; p++) {
        int64_t above = kept->held[p] - kept->held[segment->begin], step = kept->held[p] - kept->held[p - 1];
        most = above > most ? above : most;
        largest = step > largest ? step : largest;
    }
    if (kept->host <= 0 || moving->out <= 0 || bytes < trek_way_min_bytes)
        return false;
    segment->host = bytes;
    segment->ns = trek_moving_ns(moving, bytes, segment->ns);
    segment->need = segment->result + (TREK_WAY_AHEAD + 1) * largest;
    segment->need = segment->need < most ? segment->need : most;
    return true;
}

static trek_status add_segment(trek_kept *kept, const trek_moving *moving, trek_kept_segment segment, trek_segment on_line)
{
    if (on_line.end >= kept->n_points)
        on_line.end = kept->n_points - 1;
    if (on_line.end <= on_line.begin)
        return TREK_OK;
    TRY(append(kept, segment, on_line));
    segment.moved = move_segment(kept, moving, &on_line);
    return segment.moved ? append(kept, segment, on_line) : TREK_OK;
}

/* What a graph within the graph has tagged would be tagged again. */
static trek_status note_graph(const char *name, trek_module *module, void *any)
{
    (void)name;
    *(bool *)any |= module->own->klass == &trek_graph_class;
    return TREK_OK;
}

static bool ran_once(const trek_kept *kept, int k)
{
    for (int j = 0; j < kept->n_runs; j++)
        if (j != k && kept->runs[j].module == kept->runs[k].module)
            return false;
    return true;
}

static trek_status drop_what_cannot(trek_kept *kept)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < kept->n_runs && status == TREK_OK; k++) {
        bool graph = false;
        if (kept->runs[k].may)
            status = trek_module_each(kept->runs[k].module, note_graph, &graph);
        kept->runs[k].may &= !graph && ran_once(kept, k);
    }
    return status;
}

static int child_of(const trek_module *parent, const trek_module *module)
{
    for (int k = 0; k < parent->own->n_children; k++)
        if (parent->own->children[k].module == module)
            return k;
    return -1;
}

/* Finds the runs of a sequential's children, in order: children[] are their numbers. Returns how many there are; 0 if the run is
 * none of a sequential. */
static int runs_in(const trek_kept *kept, int sequential, int *runs, int *children)
{
    const trek_kept_run *around = &kept->runs[sequential];
    int n = 0;
    if (around->module->own->klass != &trek_sequential_class || !around->may)
        return 0;
    for (int k = sequential + 1; k < kept->n_runs && kept->runs[k].begin < around->end; k++) {
        if (kept->runs[k].parent != sequential)
            continue;
        runs[n] = k;
        children[n] = child_of(around->module, kept->runs[k].module);
        if (children[n] < 0 || (n > 0 && children[n] <= children[n - 1]))
            return 0;
        n++;
    }
    return n;
}

static trek_status add_stretches(trek_kept *kept, const trek_moving *moving, int sequential, const int *runs, const int *children,
                                 int n)
{
    trek_module *module = kept->runs[sequential].module;
    for (int first = 0; first < n; first++) {
        int64_t ns = 0;
        for (int last = first; last < n && last < first + LONGEST && kept->runs[runs[last]].may; last++) {
            const trek_kept_run *run = &kept->runs[runs[last]];
            int after = last + 1 < n ? children[last + 1] : module->own->n_children;
            ns += run->ns;
            if (first == 0 && last == n - 1) /* the sequential itself */
                continue;
            TRY(add_segment(kept, moving,
                            (trek_kept_segment){ .module = module, .first = children[first], .n = after - children[first] },
                            (trek_segment){ kept->runs[runs[first]].begin, run->end, run->result, ns, 0, 0 }));
        }
    }
    return TREK_OK;
}

static trek_status add_children(trek_kept *kept, const trek_moving *moving, int sequential)
{
    int *list = trek_calloc(2 * (size_t)kept->n_runs, sizeof *list);
    if (!list)
        return TREK_ERR_MEMORY;
    int n = runs_in(kept, sequential, list, list + kept->n_runs);
    trek_status status = add_stretches(kept, moving, sequential, list, list + kept->n_runs, n);
    trek_free(list);
    return status;
}

trek_status trek_kept_find_segments(trek_kept *kept, const trek_moving *moving, int64_t host)
{
    kept->host = host;
    TRY(kept->status);
    TRY(drop_what_cannot(kept));
    for (int p = kept->n_points - 1; p >= 0; p--)
        kept->held[p] -= kept->held[0];
    for (int k = 0; k < kept->n_runs; k++) {
        const trek_kept_run run = kept->runs[k];
        bool in_sequential = run.parent >= 0 && kept->runs[run.parent].module->own->klass == &trek_sequential_class &&
            kept->runs[run.parent].may;
        bool fuses = run.module->own->klass == &trek_linear_class || run.module->own->klass == &trek_conv_classes[1];
        if (run.may && !in_sequential && !fuses) /* in a sequential it is a stretch of one; what fuses keeps little by itself */
            TRY(add_segment(kept, moving, (trek_kept_segment){ .module = run.module },
                            (trek_segment){ run.begin, run.end, run.result, run.ns, 0, 0 }));
        TRY(add_children(kept, moving, k));
    }
    return TREK_OK;
}

/* --- what was chosen ------------------------------------------------------------------------ */

trek_status trek_kept_apply(const trek_kept *kept, trek_module *root, const bool *chosen)
{
    trek_status status = trek_ways_forget(root);
    for (int k = 0; k < kept->n_segments && status == TREK_OK; k++) {
        const trek_kept_segment *segment = &kept->segments[k];
        trek_module_way way = segment->moved ? TREK_WAY_MOVE : TREK_WAY_RECOMPUTE;
        if (chosen[k] && segment->n == 0)
            trek_module_set_way(segment->module, way);
        else if (chosen[k])
            status = trek_sequential_set_way(segment->module, segment->first, segment->n, way);
    }
    return status;
}

typedef struct naming {
    const trek_kept_segment *segment;
    trek_text *text;
} naming;

static trek_status name_segment(const char *path, trek_module *module, void *arg)
{
    const naming *n = arg;
    const trek_kept_segment *segment = n->segment;
    if (module != segment->module)
        return TREK_OK;
    const trek_module_link *children = module->own->children;
    trek_text_format(n->text, "%s%s", n->text->length ? ", " : "", *path || segment->n > 0 ? path : "all");
    if (segment->n > 0)
        trek_text_format(n->text, "%s%s", *path ? "." : "", children[segment->first].name);
    if (segment->n > 1)
        trek_text_format(n->text, "-%s", children[segment->first + segment->n - 1].name);
    return TREK_ERR_STATE; /* ends the walk */
}

int trek_kept_describe(const trek_kept *kept, trek_module *root, const bool *chosen, bool moved, trek_text *text)
{
    int n = 0;
    for (int k = 0; k < kept->n_segments; k++)
        if (chosen[k] && kept->segments[k].moved == moved) {
            trek_walk_modules(root, 0, name_segment, &(naming){ &kept->segments[k], text });
            n++;
        }
    return n;
}
