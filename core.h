/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that most programs begin with: scopes and errors, variables, the ops, layers, losses and optimizers that most
 * models use, data, graphs, training on all devices, and state files. trek.h includes them and nearly everything else: a program
 * that needs more includes it instead. */
#ifndef TREK_CORE_H
#define TREK_CORE_H

#include "autograd/activations.h"
#include "autograd/arithmetic.h"
#include "autograd/backward.h"
#include "autograd/basic_losses.h"
#include "autograd/reductions.h"
#include "autograd/shapes.h"
#include "autograd/var.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "distributed/run.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph.h"
#include "graph/record.h"
#include "nn/basic_layers.h"
#include "nn/module.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tensor/scope.h"
#include "tensor/status.h"
#include "tensor/tensor.h"

#endif
