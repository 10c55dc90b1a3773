"""From a call to its result: agreement of the ranks, fusion, and running what was agreed on."""
