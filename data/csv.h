/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets of text tables with comma-separated values (RFC 4180). */
#ifndef TREK_DATA_CSV_H
#define TREK_DATA_CSV_H

#include "data/dataset.h"

TREK_BEGIN

/* A field of the dataset, which is made of one column or of several. */
typedef struct trek_csv_field {
    const char *name;           /* the name of the field; default: that of the first column */
    const char *const *columns; /* the names of the columns, or numbers "0", "1", ... without names; default: the column `name` */
    int n_columns;              /* number of `columns` */
    trek_dtype dtype;           /* integers, u8 and bool take whole numbers in range, bool also true and false; default f32 */
    bool category;              /* the values are words of a set; the field is i64, the index of the word in `words` */
    const char *const *words;   /* the words of a category; default: those in the file, sorted by bytes */
    int n_words;                /* number of `words` */
    /* A missing value becomes `missing` (for a category only if `words` are given). Default false: a missing value is NaN for
     * floating dtypes, -1 for categories, and an error FORMAT for integers. */
    bool fill;
    double missing;             /* the number for missing values */
} trek_csv_field;

/* Options of trek_dataset_csv. */
typedef struct trek_csv_opts {
    /* The fields. Default: one for each column, which is i64 if all values are whole numbers, f32 if all are numbers or some are
     * missing, and otherwise a category. */
    const trek_csv_field *fields;
    int n_fields;        /* number of `fields` */
    char delimiter;      /* the character between values; default ',' */
    bool no_header;      /* the first row has values, and the columns are named "0", "1", ...; default false */
    const char *missing; /* a word for a missing value, in addition to an empty value; default "NA" */
} trek_csv_opts;

/* Returns a dataset whose samples are the rows of a file, plain or compressed by gzip. A field of one column is [n], a field
 * of several is [n, columns]. `opts` may be NULL.
 * - The file is read in pieces, and only the values that fields need are kept in memory.
 * - Values may be quoted, with "" for a quote. Rows end with LF or CRLF. Empty rows and a byte order mark are skipped. Numbers
 *   have a decimal point in every locale. "nan" and "inf" are numbers.
 * - Errors: IO, MEMORY. ARGUMENT, with a list of the columns, if a column does not exist. FORMAT, with the path and the line,
 *   if a row has another number of values than the first, if a value is not a number of the dtype or not one of `words`, or if
 *   a quote does not end. NULL is returned. */
TREK_API trek_dataset *trek_dataset_csv(const char *path, const trek_csv_opts *opts);
/* Returns the words of a category field and writes their number to *n. The dataset may also be a subset of one from a file.
 * The list is valid as long as the dataset.
 * Errors: ARGUMENT for any other field or dataset; NULL is returned. */
TREK_API const char *const *trek_csv_words(const trek_dataset *dataset, const char *field, int *n);

TREK_END

#endif
