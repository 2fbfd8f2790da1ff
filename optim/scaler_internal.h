/* SPDX-License-Identifier: Apache-2.0 */
/* A gradient scaler's record, for optimizers and steppers. Internal. */
#ifndef TREK_OPTIM_SCALER_INTERNAL_H
#define TREK_OPTIM_SCALER_INTERNAL_H

#include "optim/scaler.h"
#include "tensor/backend.h"

struct trek_grad_scaler {
    bool disabled;
    uint64_t serial;           /* another one after each making and loading: */
    uint64_t follows;          /* what a rank's copy was made or brought in line from */
    trek_update_scaler values; /* until there is a record; the constants always */
    trek_tensor *record;       /* u8, a trek_update_scaler on its device; NULL: not made yet */
    trek_tensor *scale;        /* f32 scalar, the view of its scale */
};

/* The record on a device, made at need; NULL and MEMORY, or STATE if it lives on another one. */
trek_update_scaler *trek_scaler_record(trek_grad_scaler *scaler, trek_device device);
/* The record to and from `values`; without one nothing happens on reading. */
trek_status trek_scaler_read(trek_grad_scaler *scaler);
trek_status trek_scaler_write(trek_grad_scaler *scaler);
/* Brings a rank's own copy of a scaler in line, after it was made or the original was loaded: they stay alike, as all
 * ranks decide the same. Waits where there is something to do. */
trek_status trek_scaler_follow(trek_grad_scaler *copy, trek_grad_scaler *original);
/* The scale in an f32 or f64 loss's shape, on its device, for the seed of a backward pass: in the present scope. */
trek_var *trek_scaler_seed(trek_grad_scaler *scaler, const trek_var *loss);

#endif
