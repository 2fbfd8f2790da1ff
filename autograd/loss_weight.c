/* SPDX-License-Identifier: Apache-2.0 */
/* The number of items that a loss is the mean of. It is kept with the loss and counted when needed. */
#include <math.h>

#include "autograd/losses_internal.h"

/* Returns the loss's empty record, or NULL with MEMORY. */
static trek_loss_count *record(trek_var *loss)
{
    trek_leaf *leaf = trek_var_leaf(loss);
    trek_loss_count *count = leaf ? trek_block_alloc(sizeof *count) : NULL;
    if (!count)
        return NULL;
    *count = (trek_loss_count){ 0 };
    trek_loss_count_free(leaf->count);
    leaf->count = count;
    return count;
}

trek_var *trek_loss_mean_of(trek_var *loss, double weight)
{
    trek_loss_count *count = loss ? record(loss) : NULL;
    if (!count)
        return NULL;
    count->weight = weight;
    return loss;
}

trek_var *trek_loss_mean_of_labels(trek_var *loss, trek_var *labels, trek_var *classes, int64_t ignore)
{
    trek_loss_count *count = loss ? record(loss) : NULL;
    if (!count)
        return NULL;
    count->labels = trek_tensor_retain(labels->data);
    count->labels_version = labels->data->storage->version;
    count->ignore = ignore;
    if (classes) {
        count->classes = trek_tensor_retain(classes->data);
        count->classes_version = classes->data->storage->version;
    }
    return loss;
}

/* Makes the ignored label as a tensor on the labels' device, unless a double represents it. */
static trek_tensor *ignored_label(const trek_loss_count *count)
{
    int64_t exact = INT64_C(1) << 53;
    if (count->ignore >= -exact && count->ignore <= exact)
        return trek_tensor_full(trek_dims_none(), (double)count->ignore, TREK_I64, count->labels->device);
    return trek_tensor_from_data(&count->ignore, trek_dims_none(), TREK_I64, count->labels->device);
}

/* Counts the labels with ops on their device, in the current scope and without recording. */
static trek_var *count_labels(const trek_loss_count *count)
{
    trek_var *labels = trek_cast(trek_var_constant(count->labels), TREK_I64);
    trek_tensor *ignore = ignored_label(count);
    trek_var *counts = trek_ne(labels, ignore ? trek_var_from(ignore) : NULL); /* a double may not represent it */
    if (count->classes && counts) {
        trek_var *safe = trek_mul(labels, trek_cast(counts, TREK_I64)); /* an ignored label need not be a class */
        trek_var *weights = trek_cast(trek_index_select(trek_var_constant(count->classes), 0, safe), TREK_F64);
        counts = trek_mul(weights, trek_cast(counts, TREK_F64));
    }
    return trek_sum(counts, trek_dims_all(), false);
}

/* Checks that the labels have not changed. */
static trek_status check_labels(const trek_loss_count *count)
{
    if (count->labels->storage->version != count->labels_version ||
        (count->classes && count->classes->storage->version != count->classes_version))
        return trek_fail(TREK_ERR_STATE, "loss_weight: labels: they were overwritten after the loss was computed");
    return TREK_OK;
}

trek_var *trek_loss_counted(const trek_var *loss)
{
    const trek_loss_count *count = loss && loss->leaf ? loss->leaf->count : NULL;
    if (!count || !count->labels || count->labels->numel == 0 || count->labels->device.type == TREK_CPU ||
        check_labels(count) != TREK_OK)
        return NULL;
    trek_no_grad_begin();
    trek_var *sum = trek_cast(count_labels(count), TREK_F64);
    trek_no_grad_end();
    return sum;
}

double trek_loss_weight(const trek_var *loss)
{
    if (!loss)
        return trek_fail_missing("loss_weight", "loss"), NAN;
    trek_loss_count *count = loss->leaf ? loss->leaf->count : NULL;
    if (!count)
        return NAN;
    if (!count->labels)
        return count->weight;
    if (count->labels->numel == 0) /* nothing to count */
        return 0;
    if (check_labels(count) != TREK_OK)
        return NAN;
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return NAN;
    trek_no_grad_begin();
    trek_var *sum = count_labels(count);
    double weight = sum ? trek_var_item(sum) : NAN;
    trek_no_grad_end();
    trek_scope_end(scope);
    if (isnan(weight))
        return NAN;
    count->weight = weight;
    trek_tensor_release(count->labels);
    trek_tensor_release(count->classes);
    count->labels = count->classes = NULL;
    return weight;
}

trek_status trek_loss_set_weight(trek_var *loss, double weight)
{
    if (!loss)
        return trek_fail_missing("loss_set_weight", "loss");
    if (!(weight >= 0 && isfinite(weight)))
        return trek_fail(TREK_ERR_ARGUMENT, "loss_set_weight: weight: %g; must be finite and not negative", weight);
    return trek_loss_mean_of(loss, weight) ? TREK_OK : trek_error_status();
}
