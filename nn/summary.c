/* SPDX-License-Identifier: Apache-2.0 */
/* A module as a table: one line for each module, followed by its parameters and buffers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/leaf.h"
#include "nn/module_internal.h"
#include "nn/pointer_map.h"
#include "nn/text.h"
#include "nn/walk.h"
#include "tensor/dtypes.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

#define MAX_COLUMN 48 /* longer names push the columns of their line to the right */

typedef struct summary {
    trek_text text;
    int name_width, type_width;
    bool measuring;
    trek_pointer_map seen, owned;
    int64_t total, trainable, bytes;
} summary;

static void add_line(summary *s, const char *name, const char *type, int64_t count)
{
    int name_length = (int)strlen(name), type_length = (int)strlen(type);
    if (s->measuring) {
        if (name_length > s->name_width && name_length <= MAX_COLUMN)
            s->name_width = name_length;
        if (type_length > s->type_width && type_length <= MAX_COLUMN)
            s->type_width = type_length;
        return;
    }
    if (count < 0)
        trek_text_format(&s->text, "%-*s  %s\n", s->name_width, name, type);
    else
        trek_text_format(&s->text, "%-*s  %-*s  %12" PRId64 "\n", s->name_width, name, s->type_width, type, count);
}

static trek_status add_entry(summary *s, const char *path, const trek_module_entry *entry, bool is_buffer)
{
    char shape[TREK_SHAPE_TEXT], name[256], type[TREK_SHAPE_TEXT + 64];
    bool first = false;
    int64_t count = trek_var_numel(entry->var);
    if (!entry->shared || trek_pointer_map_get(&s->owned, entry->var) < 0) {
        trek_status status = trek_pointer_map_add(&s->seen, entry->var, 0, &first);
        if (status != TREK_OK)
            return status;
    }
    trek_dtype dtype = trek_var_dtype(entry->var);
    const char *note = is_buffer ? "  buffer" : !first ? "  shared" : trek_var_requires_grad(entry->var) ? "" : "  frozen";
    snprintf(name, sizeof name, "  %s%s%s", path, *path ? "." : "", entry->name);
    snprintf(type, sizeof type, "%s %s%s", trek_dtype_name(dtype),
             trek_shape_format(trek_var_shape(entry->var), shape, sizeof shape), note);
    add_line(s, name, type, is_buffer || !first ? -1 : count);
    if (first) {
        s->bytes += count * (int64_t)trek_dtype_size(dtype);
        s->total += is_buffer ? 0 : count;
        s->trainable += !is_buffer && trek_var_requires_grad(entry->var) ? count : 0;
    }
    return TREK_OK;
}

static trek_status note_owned(const char *path, trek_module *module, void *arg)
{
    (void)path;
    summary *s = arg;
    trek_status status = TREK_OK;
    bool added;
    for (int k = 0; k < module->own->n_params && status == TREK_OK; k++)
        if (!module->own->params[k].shared)
            status = trek_pointer_map_add(&s->owned, module->own->params[k].var, 0, &added);
    return status;
}

static trek_status add_module(const char *path, trek_module *module, void *arg)
{
    summary *s = arg;
    char detail[256] = "", type[384];
    if (module->own->klass->describe)
        module->own->klass->describe(module, detail, sizeof detail);
    snprintf(type, sizeof type, "%s(%s)", module->own->klass->name, detail);
    add_line(s, *path ? path : "(model)", type, -1);
    trek_status status = TREK_OK;
    for (int k = 0; k < module->own->n_params && status == TREK_OK; k++)
        status = add_entry(s, path, &module->own->params[k], false);
    for (int k = 0; k < module->own->n_buffers && status == TREK_OK; k++)
        status = add_entry(s, path, &module->own->buffers[k], true);
    return status;
}

char *trek_module_summary(trek_module *module)
{
    if (!module) {
        trek_fail_missing("module_summary", "module");
        return NULL;
    }
    summary s = { .name_width = 6, .type_width = 4, .measuring = true };
    trek_status status = trek_walk_modules(module, 0, note_owned, &s);
    if (status == TREK_OK)
        status = trek_walk_modules(module, 0, add_module, &s);
    trek_pointer_map_clear(&s.seen);
    if (status == TREK_OK) {
        s.measuring = false;
        s.total = s.trainable = s.bytes = 0;
        trek_text_format(&s.text, "%-*s  %-*s  %12s\n", s.name_width, "module", s.type_width, "type", "parameters");
        status = trek_walk_modules(module, 0, add_module, &s);
        trek_pointer_map_clear(&s.seen);
        trek_text_format(&s.text, "%" PRId64 " parameters, %" PRId64 " of them trained, %" PRId64 " bytes with buffers\n",
                         s.total,
                         s.trainable, s.bytes);
    }
    trek_pointer_map_clear(&s.owned);
    if (status != TREK_OK) {
        trek_text_clear(&s.text);
        return NULL;
    }
    return trek_text_take(&s.text);
}
