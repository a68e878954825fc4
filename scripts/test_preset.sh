#!/usr/bin/env bash
# Builds and runs the tests of one preset: test_preset.sh {debug,asan,tsan} [OPTION OF CMAKE...]. Under the thread
# sanitizer only those labelled `concurrent` are built and run: the others have one thread.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
jobs=${JOBS:-$(nproc)}

cmake --preset "$preset" "${@:2}" >/dev/null || { cmake --preset "$preset" "${@:2}"; exit 1; }
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
# libgomp's own synchronisation is invisible to the thread sanitizer: one OpenMP thread.
export OMP_NUM_THREADS=1
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:second_deadlock_stack=1"

# Programs that a preset leaves out as a whole are in CMakePresets.json (MOESAIC_TEST_LABELS_LEFT_OUT,
# MOESAIC_TESTS_LEFT_OUT): in a debug build what has threads, and arithmetic. No sanitizer follows the fibers of kernels
# that are compiled for the host (tests/gpu/host).
# What a test repeats with other weights, with the larger model, with other random numbers or for more presets is the
# same code to a sanitizer or without optimisation.
left_out=('^Models/.*/sample' '^Types/StreamingExactnessTest.*/f32' '^Types/StreamingExactnessTest.*/int8'
          'PlansOfAllPresetsAreSound' '^Parts/.*PropertyTest.*/[1-9]' 'AMegabyteOfOneCharacter'
          'SimulatorTest.IsDeterministic' 'SimulatorTest.BeladyIs' 'BatchPreemptionTest.*/[01]')
# Arithmetic without memory of its own or threads, of which these presets make minutes: AMX emulated, long searches of
# the planner, the largest tables of tokens. `make test` has them.
left_out+=('^AmxTest.LongRows' '^AmxTest.IntegersOf' 'emulated_amx' 'LatentAttentionTest.OnEmulated'
           '^AttentionIsaTest' 'AttentionTest.RowsTogether.*/scalar' 'DeferralTest.DependsOnNothing'
           'BpeRunTest.RunsOfAllKinds' 'BatchPlannerTest.SaysWhatATenth' 'BatchPlannerTest.MoreDevices'
           'BatchPlannerTest.PlansWhatFits' 'BatchPlannerTest.GoesToTheEdge' 'BatchPlannerTest.ASlowLink'
           'BatchPlannerTest.NoSizesNearby' 'BatchPlannerTest.PacketsAre' 'ResolveBatchTest.ALongJob'
           'BatchPlannerTest.PlansForAnEmulatedDevice' 'BatchPlannerTest.PlansForSeveralEmulatedDevices'
           'MachineProfilerTest.PeaksOfEvery' 'ThroughputPlannerTest.ABetterMachine'
           'ThroughputPlannerTest.DenseWeightsThat' 'ThroughputPlannerTest.HiddenStates'
           'ThroughputPlannerTest.EverySchedule' 'ThroughputPlannerTest.WhatIfPlans' 'GgufTokenizerTest.DeepseekLlm'
           'GgufTokenizerTest.Gpt2' 'GgufTokenizerTest.Olmo' 'GgufTokenizerTest.Qwen2' 'GgufTokenizerTest.Starcoder'
           'TokenizerOracleTest.*/deepseek_llm' 'TokenizerOracleTest.*/gpt2' 'TokenizerOracleTest.*/olmoe'
           'TokenizerOracleTest.*/starcoder' 'JsonDocumentTest.AgreesWithNlohmannAllOver')
# The same engines again and again, with other settings: predictors and policies have tests of their own, the threads of
# a batch are those of StreamingExactnessTest and of BatchPreemptionTest, those of deferral the engine's.
left_out+=('PredictorsAndPoliciesChangeNoBit' 'BatchEngineTest.AnswersOfLatencyMode'
           'DeferralEngineTest.TokensDepend' 'DeferralEngineTest.PreemptionChanges' 'CudaModelTest.WholeStepsDoNot'
           'CudaModelTest.CapturedDecodeSteps' 'CudaModelTest.ShardedDense')
# Forward passes of every fixture, which ReferenceTest and ExactnessTest make too.
left_out+=('GoldenHashesTest.LogitsAreThose')
# The end-to-end tests give up on a server that is as slow as an instrumented one; the tests of the
# server's own code run. What has threads is the thread sanitizer's and the release build's.
targets=()
which=(-LE e2e)
if [ "$preset" = tsan ]; then
  # The threads of these are those of DeviceExactnessTest, of the other test of the store on disk and of the other model.
  left_out+=('^Types/StreamingExactnessTest.*/int4' 'PlaceRulesTest.LogitsHave' 'PlaceRulesTest.PinnedExpertsAre'
             'KvStoreEngineTest.ManyRequestsShare' 'RecurrentBatchTest.*/qwen3_5_moe_bf16')
  targets=(--target concurrent_tests)
  which=(-L concurrent)
fi
cmake --build --preset "$preset" -j "$jobs" "${targets[@]}"
exec scripts/run_tests.sh "build/$preset" "${which[@]}" -E "$(IFS='|'; echo "${left_out[*]}")"
