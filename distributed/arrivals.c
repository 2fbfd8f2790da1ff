/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/arrivals.h"

#include "data/loader_position.h"
#include "distributed/arrivals_state.h"
#include "distributed/checkpoint_internal.h"
#include "distributed/stepper.h"
#include "graph/constants_internal.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader_internal.h"
#include "nn/text.h"
#include "tensor/backend.h"
#include "tensor/byte_hash.h"
#include "tensor/version.h"

static trek_state *collect_state(trek_graph *graph, void *arg)
{
    (void)arg;
    return trek_checkpoint_collect_plain(graph, NULL, 0);
}

static trek_status read_state(trek_graph *graph, int fd, void *arg)
{
    (void)arg;
    return trek_checkpoint_read_plain(graph, fd, NULL, 0);
}

const trek_survival_state trek_arrivals_state = { .collect = collect_state, .read = read_state,
                                                  .optimizer = TREK_CHECKPOINT_OPTIMIZER };

uint64_t trek_arrivals_program(trek_graph *graph, const trek_text *options)
{
    char *described = trek_team_describe_graph(graph);
    trek_text text = { 0 };
    trek_text_format(&text, "%s\n%d\n%s\n%s\n", trek_version(), trek_cpu_backend()->isa, described ? described : "",
                     options->data ? options->data : "");
    trek_status status = trek_constants_describe(&graph->constants, &text);
    bool complete = described && !options->failed && !text.failed && status == TREK_OK;
    uint64_t hash = complete ? trek_hash_bytes(TREK_HASH_BEGIN, text.data, text.length) : 0;
    trek_free(described);
    trek_text_clear(&text);
    return hash;
}

bool trek_trainer_joined(trek_graph *graph, trek_loader *loader)
{
    if (!graph)
        return trek_fail_missing("trainer_joined", "graph"), false;
    const trek_survival *survival = trek_graph_job(graph)->survival;
    if (!survival || !survival->arrived)
        return false;
    loader = loader || !graph->graph_loader ? loader : graph->graph_loader->loader;
    if (!loader)
        return trek_fail(TREK_ERR_STATE, "trainer_joined: loader: NULL, and the graph has none; call trek_graph_set_loader, or "
                                         "give the loader with which the job trains"), false;
    return trek_loader_seek(loader, survival->place.epoch, survival->place.batch) == TREK_OK;
}
