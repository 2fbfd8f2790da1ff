/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint for loops of your own: a module and its optimizer in one file, so that both are saved at the same time. */
#ifndef TREK_EXAMPLES_KEPT_H
#define TREK_EXAMPLES_KEPT_H

#include <stdio.h>
#include <string.h>

#include "trek.h"

static inline void kept_add(trek_state *to, const char *prefix, trek_state *from)
{
    char name[256];
    for (int k = 0; k < trek_state_count(from); k++) {
        snprintf(name, sizeof name, "%s%s", prefix, trek_state_name(from, k));
        trek_state_add(to, name, trek_state_tensor(from, k));
    }
    trek_state_free(&from);
}

static inline trek_state *kept_part(const trek_state *all, const char *prefix)
{
    trek_state *part = trek_state_new();
    for (int k = 0; k < trek_state_count(all); k++)
        if (strncmp(trek_state_name(all, k), prefix, strlen(prefix)) == 0)
            trek_state_add(part, trek_state_name(all, k) + strlen(prefix), trek_state_tensor(all, k));
    return part;
}

/* Saves the whole state of a run after a number of updates, whose samples follow from their numbers, in one file; mean: its mean
 * result. */
static inline void kept_write(const char *path, trek_module *module, trek_optimizer *optimizer, int updates, double mean)
{
    char text[64];
    trek_state *all = trek_state_new();
    kept_add(all, "module.", trek_state_of(module));
    kept_add(all, "optimizer.", trek_optimizer_save(optimizer));
    snprintf(text, sizeof text, "%d %.17g", updates, mean);
    trek_state_set_metadata(all, "updates", text);
    trek_state_write(all, path);
    trek_state_free(&all);
}

/* The number of updates; 0 and an error: it cannot be read. */
static inline int kept_read(const char *path, trek_module *module, trek_optimizer *optimizer, double *mean)
{
    int updates = 0;
    trek_state *all = trek_state_read(path);
    trek_state *weights = kept_part(all, "module."), *moments = kept_part(all, "optimizer.");
    const char *text = trek_state_metadata(all, "updates");
    if (all && (!text || sscanf(text, "%d %lf", &updates, mean) != 2))
        trek_fail(TREK_ERR_FORMAT, "%s was not written by this program", path);
    if (trek_error_status() == TREK_OK && trek_state_apply(weights, module) == TREK_OK)
        trek_optimizer_load(optimizer, moments);
    trek_state_free(&moments);
    trek_state_free(&weights);
    trek_state_free(&all);
    return updates;
}

#endif
