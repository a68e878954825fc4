// The commands of `moesaic`. Each reads its own command line, does its work and returns the exit
// code; what goes wrong is thrown as Error and reported by main.
#pragma once

#include "serving/cli/command_line.h"

namespace moesaic {

int RunCommand(const Invocation& invocation);           // run: prompts and chat in the terminal
int BatchCommand(const Invocation& invocation);         // batch: a file of requests
int ServeCommand(const Invocation& invocation);         // serve: the HTTP server
int ServeExpertsCommand(const Invocation& invocation);  // serve-experts: a store for other machines
int ShowCommand(const Invocation& invocation);          // show: what a model is and what it needs
int PullCommand(const Invocation& invocation);          // pull: a model from the Hugging Face Hub
int PackCommand(const Invocation& invocation);          // pack: writes an expert store
int PerplexityCommand(const Invocation& invocation);    // perplexity: of a text
int PlanCommand(const Invocation& invocation);          // plan: how to run a throughput job
int ProfileCommand(const Invocation& invocation);       // profile: measures this machine
int BenchCommand(const Invocation& invocation);         // bench: prefill and decode rates
int BenchServeCommand(const Invocation& invocation);    // bench serve: load on a running server
int SimulateCommand(const Invocation& invocation);      // simulate: traces on a virtual clock
int TraceCommand(const Invocation& invocation);         // trace: recorded routing, as files
int VersionCommand(const Invocation& invocation);       // version: what this program was built from

}  // namespace moesaic
