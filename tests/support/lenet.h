/* SPDX-License-Identifier: Apache-2.0 */
/* LeNet, for images of 28 x 28 of one channel and ten classes. */
#ifndef TREK_TESTS_SUPPORT_LENET_H
#define TREK_TESTS_SUPPORT_LENET_H

#include "graph/flow.h"
#include "nn/layers.h"

/* Adds its layers to a flow that ends with such images; NULL: begins one. */
static inline trek_flow *lenet(trek_flow *images, trek_device device)
{
    trek_module *first = trek_nn_conv2d(1, 6, 5, device);
    trek_flow *flow = images ? trek_flow_through(images, first) : trek_flow_from(first);
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_conv2d(6, 16, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(256, 120, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(120, 84, device));
    trek_flow_through(flow, trek_nn_relu());
    return trek_flow_through(flow, trek_nn_linear(84, 10, device));
}

#endif
