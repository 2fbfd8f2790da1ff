/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's groups, moments and step counts, independent of its arena. */
#include "optim/optimizer_move.h"

#include <math.h>
#include <string.h>

#include "nn/params.h"
#include "optim/optimizer_internal.h"

typedef struct member {
    char *name;
    int group;
} member;

struct trek_optimizer_snapshot {
    int n_groups, n_members, n_entries;
    trek_optimizer_group *groups;
    member *members;               /* in the arena's order */
    trek_optimizer_entry *entries; /* views, which keep the memory alive */
    trek_update_state last;
};

/* --- taking ------------------------------------------------------------------------ */

static trek_status take_groups(trek_optimizer_snapshot *s, const trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    s->groups = trek_calloc((size_t)optimizer->n_groups, sizeof *s->groups);
    s->members = trek_calloc((size_t)arena->n_segments, sizeof *s->members);
    if (!s->groups || !s->members)
        return TREK_ERR_MEMORY;
    s->n_groups = optimizer->n_groups;
    memcpy(s->groups, optimizer->groups, (size_t)s->n_groups * sizeof *s->groups);
    for (; s->n_members < arena->n_segments; s->n_members++) {
        const trek_arena_segment *segment = &arena->segments[s->n_members];
        s->members[s->n_members] = (member){ trek_strdup(segment->name), segment->group };
        if (!s->members[s->n_members].name)
            return TREK_ERR_MEMORY;
    }
    return TREK_OK;
}

trek_optimizer_snapshot *trek_optimizer_snapshot_new(trek_optimizer *optimizer)
{
    trek_optimizer_snapshot *s = trek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    trek_status status = take_groups(s, optimizer);
    if (status == TREK_OK)
        status = trek_optimizer_export(optimizer, &s->entries, &s->n_entries);
    if (status == TREK_OK)
        status = trek_optimizer_last_step(optimizer, &s->last);
    if (status != TREK_OK)
        trek_optimizer_snapshot_free(&s);
    return s;
}

void trek_optimizer_snapshot_free(trek_optimizer_snapshot **address)
{
    trek_optimizer_snapshot *s = *address;
    *address = NULL;
    if (!s)
        return;
    for (int k = 0; k < s->n_members; k++)
        trek_free(s->members[k].name);
    trek_free(s->members);
    trek_free(s->groups);
    trek_optimizer_export_free(s->entries, s->n_entries);
    trek_free(s);
}

void trek_optimizer_group_options(const trek_optimizer_group *group, trek_option_fn fn, void *arg)
{
    const trek_optimizer_option *options = group->spec.klass->options;
    fn("first lr", group->initial_lr, arg);
    if (group->spec.state_dtype != TREK_F32)
        fn(group->spec.state_dtype == TREK_U8 ? "8-bit state" : "16-bit state", 1, arg);
    for (int k = 0; k < TREK_UPDATE_OPTIONS && options[k].name; k++)
        fn(options[k].name, group->spec.options[k], arg);
}

typedef struct option_lines {
    trek_text *text;
    int group;
} option_lines;

static void describe_option(const char *name, double value, void *arg)
{
    const option_lines *lines = arg;
    char number[40];
    trek_text_format(lines->text, "%s of group %d\t%s\n", name, lines->group, trek_text_number(value, number));
}

void trek_optimizer_snapshot_describe(const trek_optimizer_snapshot *s, trek_text *text)
{
    for (int g = 0; g < s->n_groups; g++) {
        trek_text_format(text, "kind of group %d\t%s\n", g, s->groups[g].spec.klass->name);
        trek_optimizer_group_options(&s->groups[g], describe_option, &(option_lines){ text, g });
    }
    for (int k = 0; k < s->n_members; k++)
        trek_text_format(text, "group of \"%s\"\t%d\n", s->members[k].name, s->members[k].group);
    for (int k = 0; k < s->n_entries; k++) {
        const trek_tensor *x = s->entries[k].tensor;
        if (x->dtype == TREK_I64) /* a step count */
            trek_text_format(text, "\"%s\"\t%lld\n", s->entries[k].name, (long long)trek_tensor_item(x));
        else
            trek_text_format(text, "size of \"%s\"\t%lld\n", s->entries[k].name, (long long)x->numel);
    }
}

trek_tensor *trek_optimizer_snapshot_tensor(const trek_optimizer_snapshot *s, int k)
{
    for (int at = 0; at < s->n_entries; at++)
        if (s->entries[at].tensor->dtype != TREK_I64 && k-- == 0)
            return s->entries[at].tensor;
    return NULL;
}

/* --- making ------------------------------------------------------------------------- */

static trek_status add_group(trek_optimizer *optimizer, const trek_optimizer_snapshot *s, int group)
{
    trek_params *params = trek_params_new();
    trek_status status = params ? TREK_OK : trek_error_status();
    const trek_arena *arena = optimizer->arena;
    for (int k = 0; k < s->n_members && status == TREK_OK; k++) {
        if (s->members[k].group != group)
            continue;
        int at = 0;
        while (at < arena->n_segments && strcmp(arena->segments[at].name, s->members[k].name) != 0)
            at++;
        status = at < arena->n_segments
                     ? trek_params_add(params, s->members[k].name, arena->segments[at].param)
                     : trek_fail(TREK_ERR_ARGUMENT, "optimizer: parameter '%s' no longer exists", s->members[k].name);
    }
    if (status == TREK_OK && trek_optimizer_add_group(optimizer, params, trek_optimizer_spec_again(&s->groups[group].spec)) < 0)
        status = trek_error_status();
    trek_params_free(&params);
    return status;
}

trek_optimizer_spec trek_optimizer_source_spec(const trek_optimizer_source *source)
{
    return source->spec ? *source->spec : trek_optimizer_spec_again(&source->snapshot->groups[0].spec);
}

trek_optimizer *trek_optimizer_make(const trek_optimizer_source *source, trek_arena *arena)
{
    const trek_optimizer_snapshot *s = source->snapshot;
    trek_optimizer *optimizer = trek_optimizer_new_over(trek_optimizer_source_spec(source), arena);
    if (source->spec)
        return optimizer;
    trek_status status = optimizer ? TREK_OK : trek_error_status();
    for (int g = 1; g < s->n_groups && status == TREK_OK; g++)
        status = add_group(optimizer, s, g);
    if (status == TREK_OK)
        status = trek_optimizer_import(optimizer, s->entries, s->n_entries);
    if (status != TREK_OK) {
        trek_optimizer_free(&optimizer);
        return NULL;
    }
    for (int g = 0; g < s->n_groups; g++) /* the current values, and the rates that a schedule began with */
        optimizer->groups[g] = s->groups[g];
    optimizer->last = s->last;
    return optimizer;
}
