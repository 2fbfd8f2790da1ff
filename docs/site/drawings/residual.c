/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a small graph with a residual block and a tag, as trek_graph_svg draws it, on standard output. */
#include "trek.h"

#include <stdio.h>

static trek_graph *build(trek_device device)
{
    trek_flow *flow = trek_flow_from(trek_nn_conv2d_with(&(trek_conv2d_opts){
        .in = 1, .out = 8, .kernel = { 3 }, .padding_kind = TREK_PADDING_SAME, .device = device }));
    trek_flow_label(trek_flow_through(flow, trek_nn_relu()), "relu");
    trek_flow_also(flow, trek_nn_conv2d_with(&(trek_conv2d_opts){
        .in = 8, .out = 8, .kernel = { 3 }, .padding_kind = TREK_PADDING_SAME, .device = device }));
    trek_flow_label(flow, "residual");
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(8 * 28 * 28, 10, device));
    trek_flow_tag(trek_flow_label(flow, "head"), "logits");
    return trek_flow_build(flow);
}

int main(void)
{
    trek_graph *graph = build(trek_cpu(0));
    char *svg = graph ? trek_graph_svg(graph, &(trek_graph_draw_opts){ .params = true }) : NULL;
    if (svg)
        fputs(svg, stdout);
    else
        fprintf(stderr, "%s\n", trek_error());
    int failed = !svg;
    trek_string_free(&svg);
    trek_graph_free(&graph);
    return failed;
}
