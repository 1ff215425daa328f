"""Defaults of RocketMQ 5.3.3 and 5.5.0 for keys that are not settings here: at these a key needs no warning.

As servers print them with an empty configuration. Defaults that depend on the machine, such as sizes of
thread pools, are left out. `|` separates the defaults of several servers or releases.
"""

_PAIRS = """
    accessMessageInMemoryHotRatio=26 accountStatsEnable=true accountStatsPrintZeroValues=true
    ackMessageThreadPoolNums=16 ackThreadPoolQueueCapacity=100000 adminBrokerThreadPoolNums=16
    adminBrokerThreadPoolQueueCapacity=10000 allowRecallWhenBrokerNotWriteable=true appendAckAsync=false
    appendCkAsync=false appendTopicForTimerDeleteKey=false asyncSendEnable=true autoDeleteUnusedStats=true
    autoMessageVersionOnTopicLen=true batchDispatchRequestThreadPoolNums=16
    bitMapLengthConsumeQueueExt=112 bottomMostCompressionTypeForConsumeQueueStore=zstd
    broadcastOffsetExpireMaxSecond=300 broadcastOffsetExpireSecond=120 brokerFastFailureEnable=true
    brokerNotActiveTimeoutMillis=10000 channelNotActiveInterval=60000 checkCRCOnRecover=true
    checkCommitLogOffsetOnRecover=false checkSyncStateSetPeriod=5000 cleanFileForciblyEnable=true
    cleanOfflineBrokerInterval=30000 cleanRocksDBDirtyCQIntervalMin=60 cleanSwapedMapInterval=300000
    clientAsyncSemaphoreValue=65535 clientChannelMaxIdleTimeSeconds=120 clientCloseSocketIfTimeout=true
    clientManageThreadPoolNums=32 clientManagerThreadPoolQueueCapacity=1000000
    clientOnewaySemaphoreValue=65535 clientPooledByteBufAllocatorEnable=false
    clientRequestThreadPoolNums=8 clientRequestThreadPoolQueueCapacity=50000 clientSocketRcvBufSize=0
    clientSocketSndBufSize=0 clientWorkerThreads=4 clusterTest=false coldCtrStrategyEnable=false
    coldDataScanEnable=false combineAssignOffsetCQType=default combineCQEnableCheckSelf=false
    combineCQLoadingCQTypes=default;defaultRocksDB combineCQMaxExtraSearchCommitLogFiles=3
    combineCQPreferCQType=default combineCQUseRocksdbForLmq=false commercialBaseCount=1
    commercialSizePerMsg=4096 commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200
    commitIntervalCommitLog=200 commitLogForceSwapMapInterval=43200000 commitLogRecoverMaxNum=10
    commitLogSwapMapInterval=3600000 commitLogSwapMapReserveFileNum=100
    compactionCqMappedFileSize=10485760 compactionMappedFileSize=104857600
    compactionScheduleInternal=900000 compactionThreadNum=6 compatibleWithOldNameSrv=true
    compressedRegister=false
    configBlackList=configBlackList;brokerConfigPath|configBlackList;configStorePath;kvConfigPath
    configManagerVersion=v1 connectTimeoutMillis=3000 consumerFallbehindThreshold=17179869184
    consumerManageThreadPoolNums=32 consumerManagerThreadPoolQueueCapacity=1000000
    correctLogicMinOffsetForceInterval=300000 correctLogicMinOffsetSleepInterval=1
    dataReadAheadEnable=true debugLockEnable=false defaultThreadPoolNums=16
    defaultThreadPoolQueueCapacity=10000 deleteConsumeQueueFilesInterval=100
    destroyMapedFileIntervalForcibly=120000 disableCallbackExecutor=false
    disableConsumeIfConsumerReadSlowly=false disableNettyWorkerGroup=false disappearTimeAfterStart=-1
    diskFallRecorded=true dispatchCqCacheNum=4096 dispatchCqThreads=10 dispatchFromSenderThread=false
    enableAcceleratedRecovery=false enableAsyncReput=true enableBatchPush=false
    enableBroadcastOffsetStore=true enableBuildConsumeQueueConcurrently=false enableCalcFilterBitMap=false
    enableCleanExpiredOffset=false enableCompaction=true enableConnectionMetrics=true
    enableConsumeQueueExt=false enableDetailStat=true enableFastChannelEventProcess=false
    enableLagAndDlqMetrics=true enableLiteEventMode=true enableLitePopLog=false
    enableLmq=false enableLmqStats=false enableLogConsumeQueueRepeatedlyBuildWhenRecover=false
    enableMessageStoreMetrics=true enableMultiDispatch=false enableNetWorkFlowControl=false
    enableNotifyAfterPopOrderLockRelease=true enableNotifyBeforePopCalculateLag=true
    enablePopBatchAck=false enablePopLog=false enablePopMetrics=true enableReconnectForGoAway=true
    enableRegisterProducer=true enableRemoteEscape=false enableRemotingMetrics=true
    enableRequestMetrics=true enableRocksDBLog=false enableRunningFlagsInFlush=false
    enableScheduleAsyncDeliver=false enableScheduleMessageStats=true enableShutdownGracefully=false
    enableSingleTopicRegister=false enableSkipLongAwaitingAck=false enableSplitMetadata=true
    enableSplitRegistration=false enableStatsMetrics=true enableTransactionMetrics=true
    endTransactionPoolQueueCapacity=100000 estimateAccumulation=true expectConsumerNumUseFilter=32
    fastFailIfNoBufferInStorePool=false fetchControllerAddrByDnsLookup=false
    fetchNameSrvAddrByDnsLookup=false fetchNamesrvAddrByAddressServer=false fetchNamesrvAddrInterval=10000
    filterDataCleanTimeSpan=86400000 filterSupportRetry=false flushCommitLogTimed=true
    flushConsumeQueueLeastPages=2 flushConsumerOffsetHistoryInterval=60000
    flushLeastPagesWhenWarmMapedFile=4096 forceRegister=true forwardTimeout=3000
    heartbeatThreadPoolQueueCapacity=50000 highSpeedMode=false indexFileReadEnable=true
    indexFileWriteEnable=true isBrokerContainer=false isInBrokerContainer=false
    isScanAvailableNameSrv=true isolateLogEnable=false iteratorWhenUseRocksdbConsumeQueue=true
    liteEventCheckInterval=10000 liteEventFullDispatchDelayTime=10000
    liteEventFullDispatchDelayTimeForWildcardGroup=10000 liteLagCountMetricsEnable=false
    liteLagLatencyCollectEnable=false liteLagLatencyMetricsEnable=false liteLagLatencyTopK=50
    litePullThreadPoolQueueCapacity=100000
    loadBalancePollNameServerInterval=30000 loadBalanceProcessorThreadPoolNums=32
    loadBalanceThreadPoolQueueCapacity=100000 lockInStrictMode=false
    logicQueueForceSwapMapInterval=43200000 logicQueueSwapMapInterval=3600000
    logicQueueSwapMapReserveFileNum=20 logicalDiskSpaceCleanForciblyThreshold=0.8
    mappedFileSizeConsumeQueueExt=50331648 mappedFileSwapEnable=true
    mapperFileSizeBatchConsumeQueue=13800000 maxAsyncPutMessageRequests=5000 maxBatchDeleteFilesNum=50
    maxChecksumRange=1073741824 maxClientEventCount=100 maxConsumeQueueScan=20000
    maxErrorRateOfBloomFilter=20
    maxMessageFilterNumForNotification=64 maxOffsetMapSize=104857600 maxReconnectIntervalTimeSeconds=60
    maxRecoveryCommitlogFiles=30 maxRocksDBIndexQueryDays=7 maxSlaveResendLength=268435456
    maxStatsIdleTimeInMinutes=-1 maxTopicLength=127 memTableFlushIntervalMs=3600000 messageIndexSafe=false
    metricGrpcExporterIntervalInMills=60000 metricGrpcExporterTimeOutInMills=3000
    metricLoggingExporterIntervalInMills=10000 metricsExportBatchMaxDataPoints=1000
    metricsExporterType=DISABLE metricsGrpcExporterHeader= metricsGrpcExporterTarget= metricsInDelta=false
    metricsLabel= metricsOtelCardinalityLimit=50000 metricsPromExporterHost=
    notifyMinBrokerIdChanged=false persistConsumerOffsetIncrementally=false popCkOffsetMaxQueueSize=20000
    popCkStayBufferTimeOut=3000 popConsumerFSServiceInit=true popConsumerKVServiceEnable=false
    popConsumerKVServiceInit=false popConsumerKVServiceLog=false
    popPollingMapExpireTimeSeconds=600 popPollingMapSize=100000 popReviveConcurrency=32
    popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384 popReviveSkipIfGroupAbsent=true
    printChannelGroups=false printChannelGroupsMinNum=5 productEnvName=center
    pullBatchMaxMessageCount=160 putConsumeQueueDataByFileChannel=true putMessageTimeout=8000
    putMsgIndexHightWater=600000 putThreadPoolQueueCapacity=10000 readUnCommitted=false
    realTimeNotifyConsumerChange=true realTimePersistRocksDBConfig=true recheckReputOffsetFromCq=false
    recoverConcurrently=false recoverThreadPoolNums=32 redeleteHangedFileInterval=120000
    replicasPerDiskPartition=1 replyThreadPoolQueueCapacity=10000 reviveAckWaitMs=180000 reviveMaxSlow=3
    reviveScanTime=10000 rocksdbCQDoubleWriteEnable=false rocksdbCompressionType=lz4
    rocksdbFlushWalFrequency=1024 rocksdbWalFileRollingThreshold=1073741824 sampleCountThreshold=5000
    sampleSteps=32 scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
    searchBcqByCacheEnable=true serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0
    serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256
    serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3 serverSocketBacklog=1024
    serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8 sharedByteBufferNum=16
    shutdownWaitTimeSeconds=30 skipPreOnline=false socksProxyConfig={}
    spinLockCollisionRetreatOptimalDegree=1000 splitMetadataSize=2000 splitRegistrationSize=800
    statRocksDBCQIntervalSec=10 supportActingMaster=false syncBrokerMemberGroupPeriod=1000
    syncMasterFlushOffsetWhenStartup=false timerCheckMetricsWhen=05 timerColdDataCheckIntervalMs=60000
    timerEnableCheckMetrics=true timerEnableDisruptor=false timerEnableRetryUntilSuccess=false
    timerFlushIntervalMs=1000 timerGetMessageThreadNum=3 timerInterceptDelayLevel=false
    timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000 timerPutMessageThreadNum=3
    timerRecallToTimeWheelEnable=true timerRecallToTimelineEnable=true timerReputServiceCorePoolSize=6
    timerReputServiceMaxPoolSize=6 timerReputServiceQueueCapacity=10000 timerRocksDBPrecisionMs=1000
    timerRocksDBRollIntervalHours=1 timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2
    timerRocksDBStopScan=false timerRocksDBTimeExpiredMaxTps=200000.0 timerSkipUnknownError=false
    timerStopDequeue=false timerStopEnqueue=false timerWarmEnable=false timerWheelSnapshotFlush=false
    timerWheelSnapshotIntervalMs=10000 topicQueueLockNum=32 totalReplicas=1
    transWriteOriginTransHalfEnable=true transactionCheckRocksdbCoreThreads=2
    transactionCheckRocksdbMaxThreads=5 transactionCheckRocksdbQueueCapacity=2000
    transactionMetricFlushInterval=3000|10000 transactionOpBatchInterval=3000 transactionOpMsgMaxSize=4096
    transferMsgByHeap=true transientStorePoolEnable=false transientStorePoolSize=5
    travelCqFileNumWhenGetMessage=1 unRegisterBrokerQueueCapacity=3000 updateNameServerAddrPeriod=120000
    useABSLock=false useEpollNativeSelector=false useMessageFilterForNotification=true
    usePIDColdCtrStrategy=true useReentrantLockWhenPutMessage=true useSeparateRetryQueue=false
    useSeparateStorePathForRocksdbCQ=false useSingleRocksDBForAllConfigs=false useStaticSubscription=false
    waitTimeMillsInAckQueue=3000 waitTimeMillsInAdminBrokerQueue=5000 waitTimeMillsInHeartbeatQueue=31000
    waitTimeMillsInLitePullQueue=5000 waitTimeMillsInSendQueue=200 waitTimeMillsInTransactionQueue=3000
    wakeCommitWhenPutMessage=true wakeFlushWhenPutMessage=false warmMapedFileEnable=false
    writeBufferHighWaterMark=0 writeBufferLowWaterMark=0 writeWithoutMmap=false
"""

DEFAULTS: dict[str, tuple[str, ...]] = {
    key: tuple(values.split("|")) for key, _, values in (pair.partition("=") for pair in _PAIRS.split())
}
