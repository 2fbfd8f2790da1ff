/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of models as Hugging Face's programs write them (config.json). A configuration is a JSON object, of which the
 * numbers, booleans and texts at the top level are kept.
 *
 *     trek_config *config = trek_config_read("gpt2/config.json");
 *     int64_t layers, heads;
 *     trek_config_integer(config, "n_layer", &layers);
 *     trek_config_integer(config, "n_head", &heads); */
#ifndef TREK_NN_CONFIG_H
#define TREK_NN_CONFIG_H

#include "tensor/status.h"

TREK_BEGIN

/* A configuration that was read from a file. */
typedef struct trek_config trek_config;

/* Reads a configuration and returns it, or NULL on failure. The caller owns it.
 * Errors: FORMAT if the file is not a well-formed JSON object, has a key twice or has more than 16 MB. IO, MEMORY. */
TREK_API trek_config *trek_config_read(const char *path);

/* Frees the configuration and its texts. *config may be NULL and is NULL afterwards. */
TREK_API void trek_config_free(trek_config **config);

/* Returns true if the object has the key, whatever its value is; lists and objects count, too. */
TREK_API bool trek_config_has(const trek_config *config, const char *key);

/* Writes the integer of a key to *value.
 * Errors: ARGUMENT, with file and key, if the key is missing or its value is not an integer. *value stays as it is then. */
TREK_API trek_status trek_config_integer(const trek_config *config, const char *key, int64_t *value);

/* Writes the number of a key, which may be an integer, to *value.
 * Errors: ARGUMENT, with file and key, if the key is missing or its value is not a number. *value stays as it is then. */
TREK_API trek_status trek_config_number(const trek_config *config, const char *key, double *value);

/* Writes the boolean of a key to *value.
 * Errors: ARGUMENT, with file and key, if the key is missing or its value is not a boolean. *value stays as it is then. */
TREK_API trek_status trek_config_bool(const trek_config *config, const char *key, bool *value);

/* Writes the text of a key to *value. The configuration owns the text.
 * Errors: ARGUMENT, with file and key, if the key is missing or its value is not a text. *value stays as it is then. */
TREK_API trek_status trek_config_string(const trek_config *config, const char *key, const char **value);

TREK_END

#endif
