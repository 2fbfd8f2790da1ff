/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the fake cuDNN among themselves: what a finished graph is, and what runs it. */
#ifndef TREK_FAKE_CUDNN_H
#define TREK_FAKE_CUDNN_H

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "cudnn.h"
#include "fake_internal.h"

namespace fake {

struct DnnTensor {
    int64_t number = 0;
    int type = 0;
    std::array<int64_t, 4> sizes{}, strides{};
    bool between = false, by_value = false;
    int64_t alignment = 0;
};
typedef std::shared_ptr<DnnTensor> DnnTensorRef;

enum class DnnKind { pointwise, matmul, reduction, reshape, conv, conv_of_input, conv_of_weight };

struct DnnOperation {
    DnnKind kind{};
    int mode = 0; /* of pointwise and reduction */
    int64_t axis = 0;
    int compute = CUDNN_DATA_FLOAT;
    DnnTensorRef x, b, t, y; /* matmul: x b = y; the three convolutions: b is the weight, or the gradient that is second */
    std::array<int64_t, 2> stride{}, padding{}, dilation{}; /* of convolutions */
};

struct DnnGraph {
    std::vector<DnnOperation> operations;
};

/* Whether operands of these shapes make the result's. */
bool dnn_fits(const DnnOperation &operation);
/* Runs the operations one after the other. addresses: by the tensors' numbers; those of numbers of the host were read. wrong: as
 * an engine would that nobody should have chosen. */
struct DnnRun {
    std::shared_ptr<const DnnGraph> graph;
    std::map<int64_t, void *> addresses;
    std::map<int64_t, double> values;
    void *workspace;
    size_t workspace_bytes;
    bool wrong;
    bool rounds; /* f32 factors of convolutions to TF32 */
};
void dnn_run(const DnnRun &run);
size_t dnn_size_of(int type);
int64_t dnn_extent(const DnnTensor &tensor); /* elements from the first to behind the last */

} // namespace fake

#endif
