/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/memory_plan.h"

#include <math.h>
#include <string.h>

#include "distributed/grains/grains.h"
#include "distributed/job/rank_devices.h"
#include "distributed/pass/dry_pass.h"
#include "distributed/recompute_plan.h"
#include "distributed/reduce/sharded.h"
#include "distributed/stepper.h"
#include "distributed/team/divided.h"
#include "distributed/team/memory.h"
#include "distributed/team/replica.h"
#include "distributed/team/step.h"
#include "distributed/trainer_ranks.h"
#include "graph/graph_internal.h"
#include "tensor/pages.h"

/* GPUs whose sizes differ by less have equal parts. */
#define ALIKE 0.9

/* --- whether there is a plan -------------------------------------------------------------- */

static bool has_budgets(const trek_step *s)
{
    bool any = s->team->memory->budgets != NULL;
    for (int p = 0; p < s->job.processes && s->job.members; p++)
        any |= s->job.members[p].budgets & 1;
    return any;
}

static bool recomputes(const trek_step *s)
{
    bool any = s->team->memory->recomputes;
    for (int p = 0; p < s->job.processes && s->job.members; p++)
        any |= s->job.members[p].budgets & 2;
    return any;
}

static bool gpus_differ(const trek_step *s)
{
    int64_t least = INT64_MAX, most = 0;
    for (int r = 0; r < s->job.world_size; r++) {
        int64_t bytes = trek_ranks_device_memory(&s->job, r);
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    return s->team->sharers > 1 && s->team->kinds == 1u << TREK_CUDA && !s->job.mixed && (double)least < ALIKE * (double)most;
}

bool trek_memory_is_planned(const trek_step *s) { return has_budgets(s) || recomputes(s) || gpus_differ(s); }

/* --- rows of this process ------------------------------------------------------------------ */

static int64_t bytes_of(const trek_tensor *t) { return t ? t->numel * (int64_t)trek_dtype_size((trek_dtype)t->dtype) : 0; }

/* Divided sums of GPUs lie in host memory. */
static int64_t bytes_on(trek_device_type type, const trek_tensor *t)
{
    const trek_pages *pages = t ? trek_pages_of(t) : NULL;
    return !t || t->device.type != type ? 0 : pages ? trek_pages_taken(pages) : bytes_of(t);
}

/* Returns what the sums of a rank's grains take of its memory now, without products, which come and go. */
static int64_t sums_bytes(const trek_grain_sums *sums, trek_device_type type)
{
    int64_t bytes = bytes_on(type, sums->all_bins) + bytes_on(type, sums->slots.more) + bytes_on(type, sums->stage.norm);
    for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
        bytes += bytes_on(type, sums->bins[p]);
        for (int k = 0; k < TREK_BINNED_DIGITS; k++)
            bytes += bytes_on(type, sums->digits[p][k]);
    }
    for (int k = 0; k < TREK_BINNED_DIGITS; k++)
        bytes += bytes_on(type, sums->piece[k]);
    return bytes;
}

static void measure_rows(const trek_step *s)
{
    int64_t sums[TREK_MAX_RANKS] = { 0 };
    trek_divided_forget(s->team);
    for (int r = 0; s->grains && r < s->team->local_ranks; r++)
        sums[r] = sums_bytes(&s->grains->sums[r], s->team->replicas[r].arena->device.type);
    trek_memory_row *rows = s->team->memory->rows + s->team->memory->first_own;
    trek_memory_measure(s->team, &s->job, sums, rows);
    for (int r = 0; s->grains && r < s->team->local_ranks; r++) /* none wait now: what is in use does not contain them */
        rows[trek_memory_row_of(s->team, r)].grads += s->grains->sums[r].slots.product_bytes;
}

/* --- accounts ------------------------------------------------------------------------------ */

static trek_status join_account(int rank, void *arg)
{
    const trek_team *team = arg;
    trek_memory_account *account = team->memory->accounts[trek_memory_row_of(team, rank)];
    return account ? trek_memory_account_join(account, team->shared ? rank : 0) : TREK_OK;
}

/* Lets CPU ranks count what they have in use, from what their arenas have now. */
static trek_status begin_accounts(trek_step *s)
{
    trek_team_memory *memory = s->team->memory;
    if (!trek_memory_account_counts() || !(s->team->kinds & 1u << TREK_CPU))
        return TREK_OK;
    memory->accounts = trek_calloc((size_t)memory->n_own, sizeof(trek_memory_account *));
    trek_status status = memory->accounts ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < memory->n_own && status == TREK_OK; k++)
        if (trek_ranks_device(s->team->ranks, k).type == TREK_CPU &&
            !(memory->accounts[k] = trek_memory_account_new(s->team->shared ? s->team->local_ranks : 1)))
            status = TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = trek_ranks_call(s->team->ranks, join_account, s->team);
    measure_rows(s);
    for (int k = 0; k < memory->n_own && status == TREK_OK; k++)
        if (memory->accounts[k])
            trek_memory_account_begin(memory->accounts[k],
                                      memory->rows[k].params + memory->rows[k].grads + memory->rows[k].state);
    return status;
}

/* --- budgets ------------------------------------------------------------------------------- */

static int ranks_of_device(const trek_team *team, trek_device device)
{
    int n = 0;
    for (int r = 0; r < team->local_ranks; r++)
        n += device.type == TREK_CPU ? trek_ranks_device(team->ranks, r).type == TREK_CPU
                                     : trek_device_equal(trek_ranks_device(team->ranks, r), device);
    return n;
}

/* Without a budget of the program's own a rank may use what is free, also in the allocator's cache, which it shares with other
 * ranks of the device. */
static int64_t free_memory(const trek_team *team, int rank)
{
    trek_device device = trek_ranks_device(team->ranks, rank);
    trek_memory_stats stats = trek_memory_usage(device);
    trek_device_info info;
    if (trek_device_info_get(device, &info) == TREK_OK)
        return (info.memory_free + stats.reserved - stats.allocated) / ranks_of_device(team, device);
    trek_error_clear();
    return 0;
}

static void find_budgets(const trek_step *s)
{
    const trek_team *team = s->team;
    trek_team_memory *memory = team->memory;
    for (int k = 0; k < memory->n_own; k++)
        memory->rows[k].budget = memory->budgets ? 0 : trek_memory_fixed(&memory->rows[k]);
    for (int r = 0; r < team->local_ranks; r++)
        memory->rows[trek_memory_row_of(team, r)].budget += memory->budgets ? memory->budgets[r] : free_memory(team, r);
}

/* --- rows of all processes ----------------------------------------------------------------- */

/* Gathers the rows of this process, which are rows [0, n_own), and those of the others. */
static trek_status gather_rows(trek_step *s, trek_status own)
{
    trek_team_memory *memory = s->team->memory;
    size_t most = (size_t)s->job.ranks_most, processes = (size_t)s->job.processes;
    trek_memory_row *mine = trek_calloc(most, sizeof *mine), *all = trek_calloc(processes * most, sizeof *all);
    trek_memory_row *rows = trek_calloc((size_t)s->job.world_size, sizeof *rows);
    if (own == TREK_OK && !(mine && all && rows))
        own = TREK_ERR_MEMORY;
    if (trek_job_has_others(&s->job))
        own = trek_replica_agree(s->job.comm, own, "trainer_setup");
    if (own == TREK_OK) {
        memcpy(mine, memory->rows + memory->first_own, (size_t)memory->n_own * sizeof *mine);
        own = trek_job_gather(&s->job, mine, most * sizeof *mine, all);
    }
    if (own == TREK_OK) {
        memory->n_rows = 0;
        for (size_t k = 0; k < processes * most; k++) {
            if (k == (size_t)s->job.process * most)
                memory->first_own = memory->n_rows;
            if (all[k].ranks > 0)
                rows[memory->n_rows++] = all[k];
        }
        trek_free(memory->rows);
        memory->rows = rows;
        rows = NULL;
    }
    trek_free(rows);
    trek_free(all);
    trek_free(mine);
    return own;
}

/* --- dividing ------------------------------------------------------------------------------ */

/* What a sharer can give to the optimizer's state and to activations. Where the program has set no budget, this does not depend
 * on what else uses a GPU now, so that a run can be repeated. */
static trek_room room_of(const trek_step *s, const trek_memory_row *row)
{
    int64_t size = has_budgets(s) || recomputes(s) ? row->budget : trek_ranks_device_memory(&s->job, row->first_rank);
    int64_t whole = (s->team->divides_params ? 0 : row->params) + (s->team->divides_grads ? 0 : row->grads);
    trek_room room = row->room;
    room.left = size - whole - row->other;
    for (int k = 0; k <= TREK_ROOM_LEVELS && row->room.levels.bytes[0] == 0; k++)
        room.levels.bytes[k] = row->activations > 0 ? row->activations : 0;
    return room;
}

/* Writes how much of `state` bytes each sharer can keep. */
static trek_status find_rooms(const trek_step *s, double state, double *rooms)
{
    const trek_team_memory *memory = s->team->memory;
    trek_room *of = trek_calloc((size_t)memory->n_rows, sizeof *of);
    for (int k = 0; k < memory->n_rows && of; k++)
        of[k] = room_of(s, &memory->rows[k]);
    trek_status status = of ? trek_rooms_find(of, memory->n_rows, state, rooms) : TREK_ERR_MEMORY;
    trek_free(of);
    return status;
}

/* Returns about how many bytes of state an optimizer will have for all parameters, with the f32 copies of 16-bit ones; infinity
 * if that is not known. */
static double state_of(const trek_step *s, const trek_optimizer_spec *spec)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    double states = 0, bytes = 0;
    if (!spec->klass)
        return INFINITY;
    for (int k = 0; k < TREK_UPDATE_STATES; k++) {
        const trek_optimizer_state *state = &spec->klass->states[k];
        double option = spec->options[state->kept_with];
        option = option == 0 ? spec->klass->options[state->kept_with].otherwise : option == TREK_ZERO ? 0 : option;
        states += state->name && state->extent == TREK_STATE_EXTENT_ELEMENTS && (state->kept_with == 0 || option > 0);
    }
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_part *part = &arena->parts[arena->segments[k].part];
        size_t wide = trek_dtype_size(part->wide), each = part->wide == TREK_F32 ? trek_dtype_size(spec->state_dtype) : wide;
        bytes += (double)arena->segments[k].count * (states * (double)each + (trek_arena_part_is_low(part) ? (double)wide : 0));
    }
    return bytes;
}

/* Divides the state anew if the sharers, each of which has a row, have different rooms. Recomputation makes room where it is
 * needed: `state` bytes. */
static trek_status divide(trek_step *s, double state)
{
    const trek_team_memory *memory = s->team->memory;
    double rooms[TREK_MAX_RANKS], all = 0;
    bool differ = false;
    if (s->team->sharers == 1 || (s->team->twice && trek_job_is_alone(&s->job))) /* it gets a part when it has joined */
        return TREK_OK;
    trek_status status = find_rooms(s, state, rooms);
    for (int k = 0; k < memory->n_rows && status == TREK_OK; k++) {
        differ |= rooms[k] != rooms[0];
        all += rooms[k];
    }
    if (status != TREK_OK)
        return status;
    return differ && all > 0 ? trek_ranks_weigh_shards(s, rooms) : TREK_OK;
}

static trek_status measure_activations(trek_step *s)
{
    trek_memory_row *rows = s->team->memory->rows + s->team->memory->first_own;
    int64_t activations[TREK_MAX_RANKS], samples[TREK_MAX_RANKS];
    trek_status status = trek_dry_pass(s, &(trek_dry_pass_result){ .activations = activations, .samples = samples });
    for (int k = 0; k < s->team->memory->n_own && status == TREK_OK; k++) {
        rows[k].activations = activations[k];
        rows[k].samples = samples[k];
    }
    return status;
}

static trek_status measure(trek_step *s, int64_t grain)
{
    int64_t before = s->grain;
    trek_status status = begin_accounts(s);
    s->grain = grain > 0 ? grain : before;
    if (status == TREK_OK)
        status = measure_activations(s);
    if (status == TREK_OK && s->team->memory->recomputes && s->team->sharers > 1)
        status = trek_recompute_estimate(s);
    s->grain = before;
    if (status != TREK_OK)
        return status;
    measure_rows(s);
    find_budgets(s);
    return TREK_OK;
}

trek_status trek_memory_divide(trek_step *s, trek_status own, int64_t grain, const trek_optimizer_spec *spec)
{
    if (own == TREK_OK)
        own = measure(s, grain);
    own = gather_rows(s, own);
    return own == TREK_OK ? divide(s, state_of(s, spec)) : own;
}

/* --- comparing ----------------------------------------------------------------------------- */

static void log_table(const trek_step *s)
{
    trek_text text = { 0 };
    trek_memory_describe(s->team->memory, s->team, &text);
    for (char *line = text.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: memory: %s", line);
    }
    trek_text_clear(&text);
}

static void limit_accounts(const trek_team_memory *memory)
{
    for (int k = 0; k < memory->n_own && memory->accounts; k++)
        if (memory->accounts[k]) {
            if (memory->budgets)
                trek_memory_account_limit(memory->accounts[k], memory->rows[memory->first_own + k].budget);
            trek_memory_account_reset_peak(memory->accounts[k]);
        }
}

/* What a step needs for itself is made now, so that the plan knows it. */
static trek_status reserve(int rank, void *arg)
{
    trek_optimizer *optimizer = ((trek_step *)arg)->team->replicas[rank].optimizer;
    return optimizer ? trek_optimizer_reserve_whole(optimizer) : TREK_OK;
}

static int64_t whole_params(const trek_arena *arena)
{
    int64_t bytes = 0;
    for (int p = 0; p < arena->n_parts; p++)
        bytes += arena->parts[p].count * (int64_t)trek_dtype_size(arena->parts[p].dtype);
    return bytes;
}

/* Lets ranks keep the parameters that they gather where they may. Returns whether some rank that does exceeds its budget. */
static bool keep_where_possible(const trek_step *s, bool measured)
{
    trek_memory_row *rows = s->team->memory->rows + s->team->memory->first_own;
    bool exceeds = false;
    for (int r = 0; r < s->team->local_ranks; r++) {
        int64_t more = measured ? 0 : whole_params(s->team->replicas[r].arena) - rows[r].params;
        bool fits = rows[r].budget > 0 && rows[r].activations >= 0 && trek_memory_total(&rows[r]) + more <= rows[r].budget;
        exceeds |= measured && rows[r].gathers == 1 && !fits;
        if (!measured || !fits)
            rows[r].gathers = fits ? 1 : 2;
        trek_divided_keep(&s->team->replicas[r], rows[r].gathers == 1);
    }
    return exceeds;
}

/* In a step of several passes one gathering of divided parameters serves all of them on ranks whose budgets allow that. */
static trek_status choose_gathering(trek_step *s)
{
    if (!s->team->divides_params || !(s->grain > 0 || trek_accumulation_weighs(&s->team->graph->accumulation)))
        return TREK_OK;
    trek_memory_row *rows = s->team->memory->rows + s->team->memory->first_own;
    for (int k = 0; k < s->team->memory->n_own; k++)
        rows[k].kept = rows[k].activations;
    keep_where_possible(s, false);
    trek_status status = measure_activations(s);
    if (status == TREK_OK && keep_where_possible(s, true))
        status = measure_activations(s);
    for (int k = 0; k < s->team->memory->n_own; k++)
        rows[k].kept = rows[k].gathers == 1 && rows[k].activations > rows[k].kept ? rows[k].activations - rows[k].kept : 0;
    measure_rows(s);
    return status;
}

trek_status trek_memory_settle(trek_step *s, trek_status own)
{
    trek_team_memory *memory = s->team->memory;
    if (own == TREK_OK)
        own = trek_ranks_call(s->team->ranks, reserve, s);
    if (own == TREK_OK && s->team->divides_grads) /* which gradients a rank has for a while depends on who owns them */
        own = measure_activations(s);
    if (own == TREK_OK)
        measure_rows(s);
    if (own == TREK_OK && memory->recomputes) {
        own = trek_recompute_choose(s);
        measure_rows(s);
    }
    if (own == TREK_OK)
        own = choose_gathering(s);
    own = gather_rows(s, own);
    if (own == TREK_OK && s->job.process == 0)
        log_table(s);
    if (own == TREK_OK)
        own = trek_memory_check(memory, "trainer_setup");
    if (own == TREK_OK)
        limit_accounts(memory);
    return own;
}

/* What a rank's threads have in use besides, and what a pass needs, is what set-up has measured: a pass may be under way. */
trek_status trek_memory_renew(trek_step *s)
{
    trek_team_memory *memory = s->team->memory;
    int64_t other[TREK_MAX_RANKS];
    if (!trek_memory_is_planned(s))
        return TREK_OK;
    for (int k = 0; k < memory->n_own; k++)
        other[k] = memory->rows[memory->first_own + k].other;
    measure_rows(s);
    for (int k = 0; k < memory->n_own; k++)
        memory->rows[memory->first_own + k].other = other[k];
    return gather_rows(s, TREK_OK);
}

/* --- the text -------------------------------------------------------------------------------- */

/* The graph trains on its own device, without a team. */
static trek_status describe_single(trek_graph *graph, trek_text *text)
{
    const trek_optimizer *optimizer = trek_graph_optimizer(graph);
    if (!optimizer)
        return trek_error_status() != TREK_OK ? trek_error_status()
            : trek_fail(TREK_ERR_STATE, "trainer_plan_text: graph: it has no optimizer yet; call trek_trainer_setup first");
    trek_device device = optimizer->arena->device;
    trek_memory_row row = { .ranks = 1, .device_type = (int32_t)device.type, .device_index = device.index, .activations = -1 };
    trek_memory_add(optimizer->arena, optimizer, &row);
    trek_memory_describe(&(trek_team_memory){ .n_rows = 1, .rows = &row }, NULL, text);
    return TREK_OK;
}

char *trek_trainer_plan_text(trek_graph *graph)
{
    trek_text text = { 0 };
    if (!graph) {
        trek_fail_missing("trainer_plan_text", "graph");
        return NULL;
    }
    trek_step *s = trek_graph_ranks(graph);
    if (trek_error_status() != TREK_OK)
        return NULL;
    if (s) {
        measure_rows(s);
        trek_memory_describe(s->team->memory, s->team, &text);
    } else if (describe_single(graph, &text) != TREK_OK) {
        return NULL;
    }
    return trek_text_take(&text);
}
