#!/usr/bin/env bash
# Builds and runs the tests of one preset: test_preset.sh {debug,asan,tsan} [OPTION OF CMAKE...]. Under the thread
# sanitizer only those labelled `concurrent` are built and run: the others have one thread. Some tests wait more than they
# compute: one more runs than there are cores.
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
# MOESAIC_TESTS_LEFT_OUT): in a debug build what has threads, and arithmetic; under the address sanitizer the engines of
# both modes on devices that compute on the host, whose kernels other tests run there, and the PTX interpreter.
# What a test repeats with other weights, with the larger model, with other random numbers or for more presets is the
# same code to a sanitizer or without optimisation.
left_out='^Models/.*/sample|^Types/StreamingExactnessTest.*/(f32|int8)|PlansOfAllPresetsAreSound'
left_out+='|^Parts/.*PropertyTest.*/[1-9]|AMegabyteOfOneCharacter|SimulatorTest.(IsDeterministic|BeladyIs)|BatchPreemptionTest.*/[01]'
# Arithmetic without memory of its own or threads, of which these presets make minutes: AMX emulated, long searches of
# the planner, the largest tables of tokens. `make test` has them.
left_out+='|^AmxTest.LongRows|^AmxTest.IntegersOf|emulated_amx|LatentAttentionTest.OnEmulated|^AttentionIsaTest'
left_out+='|AttentionTest.RowsTogether.*/scalar|DeferralTest.DependsOnNothing|BpeRunTest.RunsOfAllKinds'
left_out+='|BatchPlannerTest.(SaysWhatATenth|MoreDevices|PlansWhatFits|GoesToTheEdge|ASlowLink|NoSizesNearby|PacketsAre)'
left_out+='|ResolveBatchTest.ALongJob'
left_out+='|BatchPlannerTest.PlansFor(AnEmulatedDevice|SeveralEmulatedDevices)|MachineProfilerTest.PeaksOfEvery'
left_out+='|ThroughputPlannerTest.(ABetterMachine|DenseWeightsThat|HiddenStates|EverySchedule|WhatIfPlans)'
left_out+='|GgufTokenizerTest.(DeepseekLlm|Gpt2|Olmo|Qwen2|Starcoder)'
left_out+='|TokenizerOracleTest.*/(deepseek_llm|gpt2|olmoe|starcoder)|JsonDocumentTest.AgreesWithNlohmannAllOver'
# The same engines again and again, with other settings: predictors and policies have tests of their own, the threads of
# a batch are those of StreamingExactnessTest and of BatchPreemptionTest, those of deferral the engine's.
left_out+='|PredictorsAndPoliciesChangeNoBit|BatchEngineTest.AnswersOfLatencyMode'
left_out+='|DeferralEngineTest.(TokensDepend|PreemptionChanges)'
left_out+='|CudaModelTest.(WholeStepsDoNot|CapturedDecodeSteps|ShardedDense)'
# Forward passes of every fixture, which ReferenceTest and ExactnessTest make too.
left_out+='|GoldenHashesTest.LogitsAreThose'
if [ "$preset" = tsan ]; then
  # The threads of these are those of DeviceExactnessTest, of the other test of the store on disk and of the other model.
  left_out+='|^Types/StreamingExactnessTest.*/int4|PlaceRulesTest.(LogitsHave|PinnedExpertsAre)'
  left_out+='|KvStoreEngineTest.ManyRequestsShare|RecurrentBatchTest.*/qwen3_5_moe_bf16'
  cmake --build --preset tsan -j "$jobs" --target concurrent_tests
  exec ctest --test-dir build/tsan --output-on-failure -j $((jobs + 1)) -L concurrent -E "$left_out"
fi
cmake --build --preset "$preset" -j "$jobs"
# The end-to-end tests give up on a server that is as slow as an instrumented one; the tests of the
# server's own code run. What has threads is the thread sanitizer's and the release build's.
exclude=(-E "$left_out")
[ "$preset" = asan ] && exclude+=(-LE e2e)
[ "$preset" = debug ] && exclude+=(-LE e2e)
exec ctest --test-dir "build/$preset" --output-on-failure -j $((jobs + 1)) "${exclude[@]}"
