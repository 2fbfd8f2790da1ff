/* SPDX-License-Identifier: Apache-2.0 */
/* Loops, gates, switches and maps in a flow: each becomes a module made of the modules that were given. */
#include "graph/flow_internal.h"
#include "graph/verbs.h"
#include "nn/module_internal.h"

#include <string.h>

/* Takes the modules of which a verb makes another one. They are held, so that they outlive it if it cannot be made. */
static bool take_parts(trek_flow *flow, const char *verb, trek_module *const *parts, int n)
{
    bool taken = true;
    for (int k = 0; k < n; k++)
        taken &= trek_flow_take(flow, verb, parts[k]);
    for (int k = 0; k < n && taken; k++)
        parts[k]->own->owners++;
    return taken;
}

static void let_go(trek_module *const *parts, int n)
{
    for (int k = 0; k < n; k++)
        parts[k]->own->owners--;
}

/* Adds to the flow what was made of parts, with a node that reads the value (-1: there is none). NULL: the reason
 * becomes a mistake. clean: no error was set before it was made. The parts are held meanwhile: if what was made is
 * lost, they still belong to the flow. */
static void place(trek_flow *flow, const char *verb, bool clean, trek_module *made, int value)
{
    trek_status status = clean ? trek_error_status() : TREK_ERR_STATE; /* an error from before remains */
    if (made && trek_flow_take(flow, verb, made) && value >= 0) {
        int y = trek_flow_add_module(flow, made, value);
        if (y >= 0)
            flow->streams[0] = y;
    } else if (!made && (status == TREK_ERR_ARGUMENT || status == TREK_ERR_UNSUPPORTED)) {
        const char *text = trek_error();
        size_t length = strlen(verb);
        trek_flow_mistake(flow, "%s%s", verb, strncmp(text, verb, length) == 0 ? text + length : text);
        trek_error_clear();
    } else if (!made) {
        flow->failed = true;
    }
}

trek_flow *trek_flow_loop(trek_flow *flow, trek_module *body, const trek_loop_opts *given)
{
    trek_loop_opts opts = given ? *given : (trek_loop_opts){ 0 };
    trek_module *parts[3] = { body, opts.halt_before, opts.halt_after };
    if (!trek_flow_usable(flow, "flow_loop"))
        return trek_flow_none("flow_loop", parts, 3);
    trek_flow_begin_verb(flow);
    int n = 1;
    for (int k = 1; k < 3; k++)
        if (parts[k])
            parts[n++] = parts[k];
    if (n == 1 && trek_error_status() != TREK_OK) /* a NULL condition is not a condition: a module that could not be made must
                                                   * not be taken for an omitted one */
        trek_flow_mistake(flow, "loop: an error was already set, perhaps by its condition: %s", trek_error());
    if (!take_parts(flow, "loop", parts, n))
        return flow;
    bool clean = trek_error_status() == TREK_OK;
    trek_module *loop = trek_loop_new(body, &opts);
    place(flow, "loop", clean, loop, loop ? trek_flow_single_stream(flow, "loop", loop) : -1);
    let_go(parts, n);
    return flow;
}

typedef trek_module *(*routed_maker)(trek_module *router, trek_module *const *parts, int n);

static trek_module *by_rows(trek_module *router, trek_module *const *branches, int n)
{
    return trek_switch_new(router, branches, n, false);
}

static trek_module *for_all(trek_module *router, trek_module *const *branches, int n)
{
    return trek_switch_new(router, branches, n, true);
}

static trek_flow *add_routed(trek_flow *flow, const char *verb, const char *function, routed_maker make, trek_module *router,
                             trek_module *const *parts, int n)
{
    if (!trek_flow_usable(flow, function)) {
        if (parts)
            trek_flow_free_list(parts, n);
        return trek_flow_none(function, &router, 1);
    }
    trek_flow_begin_verb(flow);
    bool taken = take_parts(flow, verb, &router, 1), all = take_parts(flow, verb, parts, parts ? n : 0);
    if (!parts || n < 1) {
        trek_flow_mistake(flow, "%s: modules: %d besides the router; must be at least 1", verb, parts ? n : 0);
    } else if (taken && all) {
        bool clean = trek_error_status() == TREK_OK;
        trek_module *made = make(router, parts, n);
        place(flow, verb, clean, made, made ? trek_flow_single_stream(flow, verb, made) : -1);
    }
    if (all && parts)
        let_go(parts, n);
    if (taken)
        let_go(&router, 1);
    return flow;
}

trek_flow *trek_flow_gate(trek_flow *flow, trek_module *router, trek_module *const *experts, int n)
{
    return add_routed(flow, "gate", "flow_gate", trek_gate_new, router, experts, n);
}

trek_flow *trek_flow_switch(trek_flow *flow, trek_module *router, trek_module *const *branches, int n)
{
    return add_routed(flow, "switch", "flow_switch", by_rows, router, branches, n);
}

trek_flow *trek_flow_switch_batch(trek_flow *flow, trek_module *router, trek_module *const *branches, int n)
{
    return add_routed(flow, "switch", "flow_switch_batch", for_all, router, branches, n);
}

trek_flow *trek_flow_map(trek_flow *flow, trek_module *body, const trek_map_opts *opts)
{
    if (!trek_flow_usable(flow, "flow_map"))
        return trek_flow_none("flow_map", &body, 1);
    trek_flow_begin_verb(flow);
    if (!take_parts(flow, "map", &body, 1))
        return flow;
    bool clean = trek_error_status() == TREK_OK;
    trek_module *map = trek_map_new(body, opts);
    int value = map ? trek_flow_single_stream(flow, "map", map) : -1;
    if (opts && opts->over && value >= 0) {
        value = trek_graph_layout_find(&flow->layout, opts->over);
        if (value < 0)
            trek_flow_mistake(flow, "map over \"%s\": nothing has this tag", opts->over);
    }
    place(flow, "map", clean, map, value);
    let_go(&body, 1);
    return flow;
}
