// SPDX-License-Identifier: Apache-2.0
// How the site's search orders what it finds: a name that is asked for exactly comes first.
'use strict';
var Scorer = {
  objNameMatch: 1000,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
