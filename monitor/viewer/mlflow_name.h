/* SPDX-License-Identifier: Apache-2.0 */
/* Names for MLflow. */
#ifndef TREK_MONITOR_MLFLOW_NAME_H
#define TREK_MONITOR_MLFLOW_NAME_H

#include "nn/text.h"

/* Returns the name if MLflow accepts it, otherwise a similar one: invalid characters become "_", and excess length is
 * cut. It is a new string, or NULL with MEMORY. */
char *trek_mlflow_name(const char *name);

#endif
