/* SPDX-License-Identifier: Apache-2.0 */
/* A gradient scaler's record, for optimizers and steppers. */
#ifndef TREK_OPTIM_SCALER_INTERNAL_H
#define TREK_OPTIM_SCALER_INTERNAL_H

#include "optim/scaler.h"
#include "tensor/backend.h"

struct trek_grad_scaler {
    bool no_scaling;
    uint64_t serial;           /* a new one after the scaler is made and after each loading */
    uint64_t follows;          /* the serial of the original when a rank's copy was made or last synchronised */
    trek_update_scaler values; /* valid until there is a record; the constants always */
    trek_tensor *record;       /* u8, a trek_update_scaler on its device; NULL if not made yet */
    trek_tensor *scale;        /* f32 scalar, a view of the record's scale */
};

/* Returns the record on a device, which is made when first needed. Returns NULL with MEMORY, or with STATE if it is
 * on another device. */
trek_update_scaler *trek_scaler_record(trek_grad_scaler *scaler, trek_device device);
/* Copy the record to and from `values`. Without a record, reading does nothing. */
trek_status trek_scaler_read(trek_grad_scaler *scaler);
trek_status trek_scaler_write(trek_grad_scaler *scaler);
/* Synchronises a rank's own copy of a scaler after it was made or the original was loaded. Afterwards they stay
 * equal, because all ranks make the same decisions. Waits if there is something to do. */
trek_status trek_scaler_follow(trek_grad_scaler *copy, trek_grad_scaler *original);
/* Returns the scale in the shape of an f32 or f64 loss and on its device, as the seed of a backward pass, in the
 * current scope. */
trek_var *trek_scaler_seed(trek_grad_scaler *scaler, const trek_var *loss);

#endif
