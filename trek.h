/* SPDX-License-Identifier: Apache-2.0 */
/* Everything: #include <trek/trek.h> */
#ifndef TREK_TREK_H
#define TREK_TREK_H

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "distributed/apportion.h"
#include "distributed/comm.h"
#include "distributed/group.h"
#include "distributed/trainer.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "graph/graph.h"
#include "graph/observe.h"
#include "graph/timeline.h"
#include "monitor/progress.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "optim/schedule.h"
#include "tensor/common.h"
#include "tensor/memory.h"
#include "tensor/scope.h"
#include "tensor/status.h"
#include "tensor/tensor.h"
#include "tensor/types.h"

#endif
